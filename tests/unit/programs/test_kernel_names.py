"""Names of kernels: in rows, in sentences and in columns."""

from __future__ import annotations

import time

import pytest

from rooflab.programs.names import LONGEST, UNNAMED, short
from rooflab.report.kernel_names import fitted, spoken

ATEN = "void at::native::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()()"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            f"{ATEN}vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>)",
            "vectorized_elementwise_kernel<CUDAFunctor_add, BFloat16>",
        ),
        (
            f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
            "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
            "FusedAdamMathFunctor<c10::BFloat16, 4, (at::native::ADAM_MODE)1, false>, float "
            "const*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)",
            "multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>",
        ),
        (
            f"{ATEN}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
            f"direct_copy_kernel_cuda{LAMBDA} const::{{lambda(c10::BFloat16)#1}}>(at::"
            "TensorIteratorBase&)::{lambda(int)#1}>(int)",
            "elementwise_kernel<direct_copy_kernel_cuda, BFloat16>",
        ),
        (
            f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
            "float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)"
            "::{lambda(float, float)#1}>, unsigned int, float, 4, 4> >(int)",
            "reduce_kernel<sum_functor, float>",
        ),
        (
            "void at::vectorized_elementwise_kernel<8, at::GeluCUDAKernelImpl(at::"
            "TensorIteratorBase &, at::GeluType)::[lambda() (instance 2)]::operator ()() const::"
            "[lambda(c10::Half) (instance 1)], std::array<char *, 2>>(int, T2, T3)",
            "vectorized_elementwise_kernel<GeluCUDAKernelImpl, Half>",
        ),
        (
            f"{ATEN}(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native"
            "::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
            "cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>",
        ),
        (
            "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortExclusiveSumKernel<"
            "at_cuda_detail::cub::detail::radix::policy_hub<long, at::cuda::cub::detail::"
            "OpaqueType<8>, unsigned long long>::Policy1000, unsigned long long>(unsigned*)",
            "DeviceRadixSortExclusiveSumKernel<long long>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn>"
            "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn::Params)",
            "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn",
        ),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, "
            "int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
            "MainloopSm90TmaGmmaWarpSpecialized<4, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1>"
            " > >, cute::tuple<cute::C<128>, cute::C<256>, cute::C<64> >, cutlass::bfloat16_t> >"
            " >(Params)",
            "GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized, 128x256x64, bfloat16_t>",
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1"
            "_cga1x1x1_kernel0_0",
            "cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1",
        ),
        ("triton_poi_fused_add_gelu_0", "triton_poi_fused_add_gelu_0"),
        ("attn_fwd_0d1d2d3de4c", "attn_fwd"),
        ("nll_loss_2d", "nll_loss_2d"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",) * 2,
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __nv_bfloat16>(x)",
            "kernel<int, __nv_bfloat16>",
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1E"
            "EEEviT0_T1_",
            "vectorized_elementwise_kernel<FillFunctor>",
        ),
        ("_Z4axpyfPfS_", "axpy"),
        ("_ZN12_GLOBAL__N_14mineEPf", "mine"),
        ("_ZN6cudapy8__main__7my_kernB2v1B94cw51cXTLSUwv1sCUt9Tw0FEw09E5ArrayIfLi1EE", "my_kern"),
        ("my own kernel", "my own kernel"),
    ],
)
def test_names_are_read(name: str, expected: str) -> None:
    assert short(name) == expected


HOSTILE = [
    "", " ", "(", ")", "<", ">>>", "(idle)", "(anonymous namespace)", "a<b", "f(", "operator<",
    "Foo<int>::operator()(int)", "_Z", "_Z999abc", "_Z0", "Kernel<>", "Kernel2<", "a->b<c>", "::",
    "x\n\x1b[31m\u202e[bold]", "ядро<число>", "=cmd|' /C calc'!A0", "a<" * 3000, "<" * 100_000,
    "_Z" + "9" * 100_000, "_Z" + "1a" * 100_000, "k<" + "lambda(" * 50_000, "a" * 100_000,
    "x_elementwise<" + "Functor<" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_gets_one_short_line_and_is_no_copy(name: str) -> None:
    started = time.process_time()
    made = short(name)
    assert time.process_time() - started < 5
    assert 0 < len(made) <= LONGEST
    assert made.isprintable()
    assert not made.startswith("(")
    assert 0 < len(spoken(made)) <= LONGEST
    for room in (4, 9, 30, 200):
        (cell,) = fitted([(made, "#1")], room)
        assert len(cell) <= max(room, 7)
        assert cell.endswith(" #1")


def test_a_kernel_without_a_name_has_one() -> None:
    assert short("") == short("(") == UNNAMED


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>", "FusedAdam"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "FusedAdam"),
        ("vectorized_elementwise_kernel<GeluBackwardCUDAKernelImpl, BFloat16>", "GeluBackward"),
        ("vectorized_elementwise_kernel<CUDAFunctor_add, BFloat16>", "add"),
        ("reduce_kernel<sum_functor, float>", "sum"),
        ("cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64", "cudnn_sdpa_sm90_flash_bprop"),
        ("softmax_warp_forward<float, float, 9, false>", "softmax_warp_forward"),
        ("vectorized_gather_kernel<16, long>", "vectorized_gather"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("my_kernel", "my"),
        ("kernel", "kernel"),
    ],
)
def test_sentences_have_what_a_kernel_does(kernel: str, expected: str) -> None:
    assert spoken(kernel) == expected


def test_what_fits_is_shown_whole() -> None:
    kernel = "vectorized_elementwise_kernel<GeluCUDAKernelImpl, BFloat16>"
    assert fitted([(kernel, "#2")], 80) == [f"{kernel} #2"]


def test_narrow_columns_keep_what_a_kernel_is_for() -> None:
    kernels = [
        "multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>",
        "cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>",
        "cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1",
    ]
    cells = fitted([(kernel, "") for kernel in kernels], 30)
    assert cells == [
        "multi_tensor_apply<FusedAdam>",
        "cunn_SoftMaxForward",
        "cudnn_sdpa_sm90_flash_bprop",
    ]


@pytest.mark.parametrize(
    "kernels",
    [
        ("cunn_SoftMaxForward<4, float, float>", "cunn_SoftMaxForward<8, float, float>"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NTN", "nvjet_sm90_tst_256x128_64x4_2x1_v_bz_NTN"),
        ("x_kernel_tilesize128x128_stage4_a", "x_kernel_tilesize128x128_stage3_a"),
        ("elementwise_kernel<MulFunctor, float>", "elementwise_kernel<MulFunctor, BFloat16>"),
        ("elementwise<" + "a" * 30 + "b>", "elementwise<" + "a" * 30 + "c>"),
    ],
)
def test_different_kernels_stay_different(kernels: tuple[str, str]) -> None:
    cells = fitted([(kernel, "") for kernel in kernels], 20)
    assert cells[0] != cells[1]
    assert max(map(len, cells)) <= 20
