// Operators: computed by the host on copies of their arguments, at the device's cost.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <limits>
#include <set>

#include "device.h"
#include "profiler.h"

namespace at::autocast {
// Of ATen/autocast_mode.h, which includes all operators and takes a minute to compile.
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API Tensor cached_cast(at::ScalarType type, const Tensor& tensor, DeviceType device_type);
}  // namespace at::autocast

namespace flop {

inline thread_local bool is_computing = false;

// While the host computes for the device, its own copies cost nothing.
struct Computing {
  bool before = std::exchange(is_computing, true);
  ~Computing() {
    is_computing = before;
  }
};

struct OnDevice {
  int before;
  explicit OnDevice(std::optional<c10::Device> device)
      : before(std::exchange(
            current_device, device && device->has_index() ? device->index() : current_device)) {
    require_device(current_device);
  }
  ~OnDevice() {
    current_device = before;
  }
};

// The device's memory is the host's: the same numbers as a tensor of the CPU.
inline at::Tensor view_on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != kType) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
}

inline void poison(at::Tensor& target) {
  const auto type = target.scalar_type();
  if (at::isFloatingType(type) || at::isComplexType(type)) {
    target.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (type == at::kBool) {
    target.logical_not_();
  } else {
    target.bitwise_not_();
  }
}

// What the host does for every operator; the time at which its work can start.
inline int64_t launch(const std::string& name) {
  const auto& chosen = settings();
  attend();
  TORCH_CHECK(name != chosen.refused, "flop error: invalid configuration argument of ", name);
  if (chosen.launch_ns > 0) spin_until(now_ns() + static_cast<int64_t>(chosen.launch_ns));
  if (name == chosen.fault) timeline().is_broken = true;  // known at the next call
  return now_ns();
}

inline Span queue_work(const std::string& name, int device, double cost_ns, int64_t earliest_ns) {
  const int stream = current_streams[device];
  const Span span = enqueue(device, stream, cost_ns, earliest_ns);
  note_row(name, span, device, stream);
  return span;
}

inline double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.numel()) * tensor.element_size() : 0.0;
}

inline double bytes_of(const c10::IValue& value) {
  double sum = 0;
  if (value.isTensor()) {
    sum = bytes_of(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) sum += bytes_of(tensor);
  }
  return sum;
}

inline double time_of_matmul(const std::string& name, const torch::jit::Stack& arguments) {
  static const std::set<std::string> names = {
      "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_int_mm", "aten::_scaled_mm"};
  if (names.count(name) == 0) return 0;
  std::vector<at::Tensor> factors;
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().dim() >= 2) factors.push_back(value.toTensor());
  }
  const bool has_addend = name == "aten::addmm" || name == "aten::baddbmm";
  const size_t first = has_addend && factors.size() > 2 ? 1 : 0;
  if (factors.size() < first + 2) return 0;
  const auto& left = factors[first];
  const double flops = 2.0 * static_cast<double>(left.numel()) * factors[first + 1].size(-1);
  return flops / (settings().flops_per_s * 4 / left.element_size()) * 1e9;
}

inline int find_device(const torch::jit::Stack& arguments) {
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      if (value.toTensor().device().type() == kType) return value.toTensor().device().index();
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (tensor.device().type() == kType) return tensor.device().index();
      }
    }
  }
  return current_device;
}

// Their outputs have sizes that depend on numbers, so the host has to wait for them.
inline bool has_to_wait(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2"};
  return names.count(name) > 0;
}

inline void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_computing) return at::native::cpu_fallback(op, stack);
  const auto& name = op.schema().name();
  const int64_t launched_ns = launch(name);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size()).vec();
  const int device = find_device(arguments);
  double bytes = 0;
  for (const auto& value : arguments) bytes += bytes_of(value);
  {
    Computing computing;
    OnDevice on(name_device(device));
    at::native::cpu_fallback(op, stack);
  }
  for (const auto& value : torch::jit::last(*stack, op.schema().returns().size())) {
    bytes += bytes_of(value);
  }
  const double work_ns = std::max(
      time_of_matmul(name, arguments), bytes / settings().bytes_per_s * 1e9);
  const Span span = queue_work(name, device, settings().operator_ns + work_ns, launched_ns);
  if (has_to_wait(name)) spin_until(span.end_ns);
}

inline at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  OnDevice on(device);
  return at::detail::empty_generic(
      size, &Memory::instance(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  OnDevice on(device);
  return at::detail::empty_strided_generic(
      size, stride, &Memory::instance(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

inline const at::Tensor& resize_tensor(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), self.storage_offset());
  if (bytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor from = view_on_host(source), into = view_on_host(target);
  if (is_computing) {
    into.copy_(from);
    return target;
  }
  const bool is_from = source.device().type() == kType, is_into = target.device().type() == kType;
  const int device = (is_from ? source : target).device().index();
  const int64_t launched_ns = launch("aten::copy_");
  const bool is_local = is_from && is_into;
  const double bytes = bytes_of(target);
  const double work_ns = is_local ? 2 * bytes / settings().bytes_per_s * 1e9
                                  : bytes / settings().host_bytes_per_s * 1e9;
  const Span span =
      queue_work("aten::copy_", device, settings().operator_ns + work_ns, launched_ns);
  if (is_local && target.device() != source.device()) {
    hold(target.device().index(), current_streams[target.device().index()], span.end_ns);
  }
  if (!is_into && non_blocking) {
    at::Tensor content = at::empty_like(into);
    content.copy_(from);
    poison(into);
    std::lock_guard<std::mutex> lock(timeline().mutex);
    timeline().deliveries.push_back({span.end_ns, into, content});
    return target;
  }
  into.copy_(from);
  if (!is_local && !non_blocking) {
    spin_until(span.end_ns);
    attend();
  }
  return target;
}

inline at::Tensor copy_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) resize_tensor(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

inline at::Scalar read_scalar(const at::Tensor& self) {
  const int device = self.device().index();
  if (!is_computing) {
    launch("aten::_local_scalar_dense");
    synchronize_stream(device, current_streams[device]);
  }
  return at::_local_scalar_dense(view_on_host(self));
}

inline at::Tensor& set_storage(
    at::Tensor& self,
    at::Storage storage,
    int64_t offset,
    c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

inline void record_stream(at::Tensor&, at::Stream) {}  // memory is never given to another stream

// Autocast: operators in its precision, and those that need float32.
inline void cast_arguments(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType dtype) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const auto cast = [&](const at::Tensor& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kType);
  };
  const size_t count = op.schema().arguments().size();
  for (size_t position = stack->size() - count; position < stack->size(); ++position) {
    auto& value = (*stack)[position];
    if (value.isTensor() && value.toTensor().defined()) {
      value = cast(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> casted;
      for (const at::Tensor& tensor : value.toTensorList()) casted.push_back(cast(tensor));
      value = casted;
    }
  }
  op.callBoxed(stack);
}

inline void narrow(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_arguments(op, stack, at::autocast::get_autocast_dtype(kType));
}

inline void widen(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_arguments(op, stack, at::kFloat);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("_local_scalar_dense", &read_scalar);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
  // Views cost nothing.
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name :
       {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum",
        "scaled_dot_product_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&narrow>());
  }
  for (const char* name :
       {"softmax.int", "log_softmax.int", "layer_norm", "cross_entropy_loss", "nll_loss", "exp",
        "log", "pow.Tensor_Scalar", "rsqrt", "mse_loss", "cumsum", "norm.ScalarOpt_dim"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&widen>());
  }
}

}  // namespace flop
