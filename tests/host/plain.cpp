// Runs the kernel ENTRY of the file SOURCE, whatever it takes. Arguments: the grid (x y z), threads of a
// block, bytes of dynamic shared memory, then one for each argument of the kernel: a number, the bytes of an
// operand, or what a tensor map says of it. All operands come from the standard input, in their order, and go
// to the standard output.
#include "cuda.hpp"

#include SOURCE

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <tuple>
#include <type_traits>
#include <vector>

std::deque<std::vector<unsigned char>> operands;

template <typename Type>
Type argument(const char* text) {
    if constexpr (std::is_pointer_v<Type>) {
        auto& bytes = operands.emplace_back(std::atoll(text));
        if (std::fread(bytes.data(), 1, bytes.size(), stdin) != bytes.size()) std::exit(2);
        return reinterpret_cast<Type>(bytes.data());
#ifdef HAS_TENSOR_MAPS
    } else if constexpr (std::is_same_v<Type, TensorMap>) {  // bytes: 0 for the operand before
        TensorMap map;
        int bytes;
        std::sscanf(text, "%d,%d,%d,%d,%d,%d,%d,%d", &bytes, &map.matrices, &map.rows, &map.columns,
                    &map.element, &map.box_rows, &map.box_columns, &map.swizzle);
        if (bytes) argument<unsigned char*>(text);
        map.data = operands.back().data();
        return map;
#endif
    } else {
        return static_cast<Type>(std::atof(text));
    }
}

template <typename... Types>
std::tuple<Types...> arguments(void (*)(Types...), char** text) {
    return {argument<Types>(*text++)...};  // from left to right
}

int main(int, char** text) {
    const auto number = [&](int i) { return unsigned(std::atoi(text[i])); };
    gridDim = {number(1), number(2), number(3)};
    blockDim = {number(4), 1, 1};
    const auto given = arguments(ENTRY, text + 6);
    run_blocks(1, number(5), [&] { std::apply(ENTRY, given); });
    for (const auto& bytes : operands) std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}
