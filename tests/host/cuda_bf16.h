// BF16 on the CPU: rounded to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    std::uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float number) {
        std::uint32_t whole;
        std::memcpy(&whole, &number, sizeof(whole));
        bits = std::uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    explicit operator float() const {
        const std::uint32_t whole = std::uint32_t(bits) << 16;
        float number;
        std::memcpy(&number, &whole, sizeof(number));
        return number;
    }
};
