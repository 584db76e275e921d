// Runs the kernel ENTRY of the file SOURCE. Arguments: M N K alpha beta batch, the grid (x y z), the
// block (x y), bytes of dynamic shared memory, blocks of a cluster. A, B and C come from the standard
// input, C goes to the standard output.
//
// With BOX_A, BOX_B or BOX_C (rows, columns and swizzle) it takes a tensor map in the place of the
// operand's pointer, or after it with POINTER_A, POINTER_B or POINTER_C.
#include "cuda.hpp"

#include SOURCE

#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

template <typename Number>
std::vector<Number> read(size_t count) {
    std::vector<Number> numbers(count);
    if (std::fread(numbers.data(), sizeof(Number), count, stdin) != count) std::exit(2);
    return numbers;
}

#if defined(BOX_A) || defined(BOX_B) || defined(BOX_C)
template <typename Number>
TensorMap map_of(Number* data, int rows, int columns, int box_rows, int box_columns, int swizzle) {
    return {reinterpret_cast<unsigned char*>(data), rows, columns, sizeof(Number), box_rows, box_columns,
            swizzle};
}
#endif

#define POINTER(operand) std::make_tuple(operand.data())
#define MAP(operand, ...) std::make_tuple(map_of(operand.data(), __VA_ARGS__))
#if !defined(BOX_A)
#define ARGUMENTS_A POINTER(A)
#elif defined(POINTER_A)
#define ARGUMENTS_A std::tuple_cat(POINTER(A), MAP(A, transpose_a ? K : M, transpose_a ? M : K, BOX_A))
#else
#define ARGUMENTS_A MAP(A, transpose_a ? K : M, transpose_a ? M : K, BOX_A)
#endif
#if !defined(BOX_B)
#define ARGUMENTS_B POINTER(B)
#elif defined(POINTER_B)
#define ARGUMENTS_B std::tuple_cat(POINTER(B), MAP(B, transpose_b ? N : K, transpose_b ? K : N, BOX_B))
#else
#define ARGUMENTS_B MAP(B, transpose_b ? N : K, transpose_b ? K : N, BOX_B)
#endif
#if !defined(BOX_C)
#define ARGUMENTS_C POINTER(C)
#elif defined(POINTER_C)
#define ARGUMENTS_C std::tuple_cat(POINTER(C), MAP(C, M, N, BOX_C))
#else
#define ARGUMENTS_C MAP(C, M, N, BOX_C)
#endif

int main(int, char** text) {
    const int M = std::atoi(text[1]), N = std::atoi(text[2]), K = std::atoi(text[3]);
    const float alpha = std::atof(text[4]), beta = std::atof(text[5]);
    const size_t batch = std::atoi(text[6]);
    const auto number = [&](int i) { return unsigned(std::atoi(text[i])); };
    gridDim = {number(7), number(8), number(9)};
    blockDim = {number(10), number(11), 1};
    auto A = read<Input>(batch * M * K), B = read<Input>(batch * K * N);
    auto C = read<Output>(batch * M * N);
    const auto arguments =
        std::tuple_cat(std::make_tuple(M, N, K, Accumulate(alpha)), ARGUMENTS_A, ARGUMENTS_B,
                       std::make_tuple(Accumulate(beta)), ARGUMENTS_C);

    run_blocks(number(13), number(12), [&] { std::apply(ENTRY, arguments); });
    std::fwrite(C.data(), sizeof(Output), C.size(), stdout);
}
