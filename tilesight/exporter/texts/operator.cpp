// @LABEL@ as an operator of torch. Written by TileSight @VERSION@.
//
//   @SCHEMA@
//   @OUT_SCHEMA@
//
// Python: torch.ops.load_library("lib@NAME@_torch.so"), then torch.ops.tilesight.@NAME@(@INPUTS@). A C++ program links
// the library, or loads it with dlopen, and finds the operators in c10::Dispatcher. There is no derivative.
#include "@NAME@.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>
#include <torch/library.h>

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <tuple>

namespace {

using at::Tensor;

#if @IS_GPU@
// The current stream of a device. torch's function for that is looked up when it is needed, so that this compiles
// without the headers of CUDA.
void *stream_of(int device) {
  using function = int32_t (*)(int32_t, void **);
  static const function find = [] {
    void *const library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return library ? reinterpret_cast<function>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  TORCH_CHECK(find, "@NAME@: this torch has no CUDA");
  void *stream = nullptr;
  TORCH_CHECK(find(device, &stream) == 0, "@NAME@: device ", device, " has no stream");
  return stream;
}
#else
void *stream_of(int) { return nullptr; }
#endif

// Loads the kernels of a device by its first call.
int ready(const Tensor &tensor) {
  static std::array<std::atomic<bool>, 64> is_ready{};
  const int device = tensor.device().has_index() && !tensor.is_cpu() ? tensor.device().index() : 0;
  auto &done = is_ready.at(static_cast<std::size_t>(device));
  if (!done.load(std::memory_order_acquire)) {
    TORCH_CHECK(@NAME@_init(device) == 0, @NAME@_error());
    done.store(true, std::memory_order_release);
  }
  return device;
}

void check_kind(const Tensor &tensor, const char *name, at::ScalarType dtype, int64_t rank) {
  TORCH_CHECK(tensor.scalar_type() == dtype, "@NAME@: ", name, " is ", tensor.scalar_type(), " and must be ", dtype);
  TORCH_CHECK(tensor.dim() == rank, "@NAME@: ", name, " has ", tensor.dim(), " axes and must have ", rank);
}

void check_tensor(const Tensor &tensor, const char *name, const Tensor &first, at::IntArrayRef shape) {
  TORCH_CHECK(tensor.sizes() == shape, "@NAME@: ", name, " has shape ", tensor.sizes(), " and must have ", shape);
  TORCH_CHECK(tensor.device() == first.device(), "@NAME@: ", name, " lies on ", tensor.device(),
              " and the first input on ", first.device());
  TORCH_CHECK(tensor.is_contiguous() && !tensor.is_neg(), "@NAME@: ", name,
              " must be contiguous and hold its own values; give .contiguous() of it");
}

void check_kinds(@TENSOR_PARAMETERS@) {
@CHECK_KINDS@
}

void launch(@TENSOR_PARAMETERS@, @OUTPUT_PARAMETERS@) {
@READ_SIZES@
@CHECK_TENSORS@
  const int device = ready(@FIRST@);
  @NAME@_args args{};
  args.device = device;
@FILL@
@WORKSPACE@  TORCH_CHECK(@NAME@_call(&args, stream_of(device)) == 0, @NAME@_error());
}

@RETURNED@ compute(@TENSOR_PARAMETERS@) {
  check_kinds(@INPUTS@);
@READ_SIZES@
@ALLOCATE@
  launch(@INPUTS@, @OUTPUTS@);
  return @RESULT@;
}

void compute_out(@TENSOR_PARAMETERS@, @OUTPUT_PARAMETERS@) {
  check_kinds(@INPUTS@);
@CHECK_OUTPUT_KINDS@
  launch(@INPUTS@, @OUTPUTS@);
}

// Shapes alone, which may be symbolic.
@RETURNED@ compute_meta(@TENSOR_PARAMETERS@) {
  check_kinds(@INPUTS@);
@READ_SYMBOLIC_SIZES@
@ALLOCATE_SYMBOLIC@
  return @RESULT@;
}

void compute_out_meta(@TENSOR_PARAMETERS@, @OUTPUT_PARAMETERS@) {
  check_kinds(@INPUTS@);
@CHECK_OUTPUT_KINDS@
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tilesight, library) {
  library.def("@SCHEMA@", {at::Tag::pt2_compliant_tag, at::Tag::needs_contiguous_strides});
  library.def("@OUT_SCHEMA@", {at::Tag::pt2_compliant_tag, at::Tag::needs_contiguous_strides});
}

TORCH_LIBRARY_IMPL(tilesight, @KEY@, library) {
  library.impl("@NAME@", TORCH_FN(compute));
  library.impl("@NAME@_out", TORCH_FN(compute_out));
}

TORCH_LIBRARY_IMPL(tilesight, Meta, library) {
  library.impl("@NAME@", TORCH_FN(compute_meta));
  library.impl("@NAME@_out", TORCH_FN(compute_out_meta));
}
