// E4M3 on the CPU: rounded to nearest, ties to even, and saturated.
#pragma once

#include <cmath>

struct __nv_fp8_e4m3 {
    unsigned char bits;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(double number) {
        const double size = std::fmin(std::fabs(number), 448);
        int exponent;
        std::frexp(std::fmax(size, 0x1p-6), &exponent);  // below 2^-6 steps are as large as there
        const int steps = int(std::nearbyint(std::ldexp(size, 4 - exponent)));
        bits = (unsigned char)(steps + 8 * (exponent + 5) + 128 * std::signbit(number));
    }
    explicit operator float() const {
        const int exponent = bits >> 3 & 15, mantissa = (bits & 7) + (exponent ? 8 : 0);
        return std::ldexp(bits >> 7 ? -mantissa : mantissa, std::fmax(exponent, 1) - 10);
    }
};

struct __nv_fp8x2_e4m3 {
    __nv_fp8_e4m3 of[2];
    __nv_fp8x2_e4m3() = default;
    explicit __nv_fp8x2_e4m3(float2 numbers) : of{__nv_fp8_e4m3(numbers.x), __nv_fp8_e4m3(numbers.y)} {}
};
