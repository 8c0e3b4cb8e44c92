// What tch lacks, behind a C interface: custom autograd functions, backward with given output gradients, and one-pass
// AdamW and norms over lists of tensors. No C++ exception and no Rust panic crosses this boundary.
// A function returns 0, or 1 with its message in `error` (a C string of at most `ERROR_BYTES` bytes).

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr size_t ERROR_BYTES = 1024;

void set_error(char* error, const char* message) {
  std::strncpy(error, message, ERROR_BYTES - 1);
  error[ERROR_BYTES - 1] = '\0';
}

template <typename Body>
int guarded(char* error, Body body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& cause) {
    set_error(error, cause.what_without_backtrace());
  } catch (const std::exception& cause) {
    set_error(error, cause.what());
  } catch (...) {
    set_error(error, "unknown C++ exception");
  }
  return 1;
}

std::vector<at::Tensor> list_of(at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    list.push_back(tensors[i] == nullptr ? at::Tensor() : *tensors[i]);
  }
  return list;
}

}  // namespace

extern "C" {
// Rust appends the tensors it made through `slime_sink_push`; a null tensor is an undefined one.
struct SlimeSink {
  std::vector<at::Tensor> tensors;
};

// Both return 0, or 1 with a message in `error`.
typedef int (*SlimeForward)(void* closure, at::Tensor* const* inputs, size_t count, SlimeSink* outputs, SlimeSink* saved,
                            char* error);
typedef int (*SlimeBackward)(void* closure, at::Tensor* const* saved, size_t saved_count, at::Tensor* const* grads,
                             size_t grad_count, SlimeSink* input_grads, char* error);
typedef void (*SlimeRelease)(void* closure);
}

namespace {

// Frees the Rust closure with the autograd node that holds it.
struct BackwardClosure : torch::CustomClassHolder {
  BackwardClosure(void* closure, SlimeBackward call, SlimeRelease release)
      : closure(closure), call(call), release(release) {}
  ~BackwardClosure() override { release(closure); }
  void* closure;
  SlimeBackward call;
  SlimeRelease release;
};

struct ForwardCall {
  void* closure;
  SlimeForward call;
  c10::intrusive_ptr<BackwardClosure> backward;
};

std::vector<at::Tensor*> pointers_to(std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor*> pointers;
  pointers.reserve(tensors.size());
  for (auto& tensor : tensors) pointers.push_back(tensor.defined() ? &tensor : nullptr);
  return pointers;
}

struct RustFunction : torch::autograd::Function<RustFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                                                ForwardCall* call) {
    std::vector<at::Tensor> list = inputs.vec();
    auto pointers = pointers_to(list);
    SlimeSink outputs, saved;
    char error[ERROR_BYTES] = "";
    TORCH_CHECK(call->call(call->closure, pointers.data(), pointers.size(), &outputs, &saved, error) == 0, error);
    context->save_for_backward(saved.tensors);
    context->saved_data["backward"] = c10::IValue::make_capsule(call->backward);
    context->saved_data["inputs"] = static_cast<int64_t>(list.size());
    return outputs.tensors;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto holder = context->saved_data["backward"].toCapsule();
    auto* closure = static_cast<BackwardClosure*>(holder.get());
    auto saved = context->get_saved_variables();
    auto saved_pointers = pointers_to(saved);
    auto grad_pointers = pointers_to(grads);
    SlimeSink input_grads;
    char error[ERROR_BYTES] = "";
    TORCH_CHECK(closure->call(closure->closure, saved_pointers.data(), saved_pointers.size(), grad_pointers.data(),
                              grad_pointers.size(), &input_grads, error) == 0,
                error);
    auto inputs = static_cast<size_t>(context->saved_data["inputs"].toInt());
    TORCH_CHECK(input_grads.tensors.size() == inputs, "backward returned ", input_grads.tensors.size(),
                " gradients for ", inputs, " inputs");
    input_grads.tensors.emplace_back();  // the argument that is no tensor
    return input_grads.tensors;
  }
};

// Elements of one unit of work: fixed, so that sums do not depend on the number of threads.
constexpr int64_t CHUNK = 1 << 16;

struct Chunk {
  size_t tensor;
  int64_t start;
  int64_t end;
};

std::vector<Chunk> chunks_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t start = 0; start < tensors[i].numel(); start += CHUNK) {
      chunks.push_back({i, start, std::min(start + CHUNK, tensors[i].numel())});
    }
  }
  return chunks;
}

void check_lists(const std::vector<at::Tensor>& like, const std::vector<at::Tensor>& list, const char* name) {
  TORCH_CHECK(like.size() == list.size(), name, ": expected ", like.size(), " tensors, got ", list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    TORCH_CHECK(list[i].defined(), name, "[", i, "] is undefined");
    TORCH_CHECK(list[i].is_contiguous(), name, "[", i, "] is not contiguous");
    TORCH_CHECK(list[i].numel() == like[i].numel(), name, "[", i, "]: expected ", like[i].numel(), " elements, got ",
                list[i].numel());
    TORCH_CHECK(list[i].device() == like[i].device(), name, "[", i, "] is on ", list[i].device(), ", expected ",
                like[i].device());
  }
}

template <typename T>
double sum_of_squares(const T* data, int64_t start, int64_t end) {
  // Eight running sums let the compiler use vector registers without reordering anything itself.
  double sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int64_t i = start;
  for (; i + 8 <= end; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      double x = static_cast<double>(data[i + lane]);
      sums[lane] += x * x;
    }
  }
  double total = 0;
  for (double sum : sums) total += sum;
  for (; i < end; ++i) total += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  return total;
}

double chunk_sum_of_squares(const at::Tensor& tensor, int64_t start, int64_t end) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return sum_of_squares(tensor.const_data_ptr<float>(), start, end);
    case at::kDouble:
      return sum_of_squares(tensor.const_data_ptr<double>(), start, end);
    case at::kBFloat16:
      return sum_of_squares(tensor.const_data_ptr<at::BFloat16>(), start, end);
    default:
      TORCH_CHECK(false, "norm: expected f32, f64 or bf16, got ", tensor.scalar_type());
  }
}

struct AdamW {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step;
};

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void adamw_floats(const float* grad, float* master, float* first, float* second, int64_t count, float grad_scale,
                  float decay, float beta1, float rest1, float beta2, float rest2, float step_size, float inverse_correction2, float eps) {
  for (int64_t i = 0; i < count; ++i) {
    float g = grad[i] * grad_scale;
    float m = beta1 * first[i] + rest1 * g;
    float v = beta2 * second[i] + rest2 * g * g;
    first[i] = m;
    second[i] = v;
    master[i] = master[i] * decay - step_size * m / (std::sqrt(v) * inverse_correction2 + eps);
  }
}

void adamw_chunk(const AdamW& adam, const at::Tensor& param, const at::Tensor& grad, const at::Tensor& master,
                 const at::Tensor& first, const at::Tensor& second, const Chunk& chunk) {
  const double correction1 = 1.0 - std::pow(adam.beta1, static_cast<double>(adam.step));
  const double correction2 = 1.0 - std::pow(adam.beta2, static_cast<double>(adam.step));
  // A block fits the first-level cache, so a bf16 gradient or parameter is converted beside the update.
  constexpr int64_t BLOCK = 1024;
  float widened[BLOCK];
  float* master_data = master.data_ptr<float>();
  for (int64_t start = chunk.start; start < chunk.end; start += BLOCK) {
    const int64_t count = std::min(BLOCK, chunk.end - start);
    const float* grad_data = widened;
    if (grad.scalar_type() == at::kFloat) {
      grad_data = grad.const_data_ptr<float>() + start;
    } else {
      const at::BFloat16* narrow = grad.const_data_ptr<at::BFloat16>() + start;
      for (int64_t i = 0; i < count; ++i) widened[i] = static_cast<float>(narrow[i]);
    }
    adamw_floats(grad_data, master_data + start, first.data_ptr<float>() + start, second.data_ptr<float>() + start,
                 count, static_cast<float>(adam.grad_scale), static_cast<float>(1.0 - adam.lr * adam.weight_decay),
                 static_cast<float>(adam.beta1), static_cast<float>(1.0 - adam.beta1),
                 static_cast<float>(adam.beta2), static_cast<float>(1.0 - adam.beta2),
                 static_cast<float>(adam.lr / correction1), static_cast<float>(1.0 / std::sqrt(correction2)),
                 static_cast<float>(adam.eps));
    if (param.scalar_type() == at::kBFloat16) {
      at::BFloat16* narrow = param.data_ptr<at::BFloat16>() + start;
      for (int64_t i = 0; i < count; ++i) narrow[i] = static_cast<at::BFloat16>(master_data[start + i]);
    } else if (param.data_ptr<float>() != master_data) {
      std::memcpy(param.data_ptr<float>() + start, master_data + start, count * sizeof(float));
    }
  }
}

void adamw_on_cpu(const AdamW& adam, std::vector<at::Tensor>& params, std::vector<at::Tensor>& grads,
                  std::vector<at::Tensor>& masters, std::vector<at::Tensor>& firsts, std::vector<at::Tensor>& seconds) {
  auto chunks = chunks_of(params);
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const size_t i = chunks[c].tensor;
      adamw_chunk(adam, params[i], grads[i], masters[i], firsts[i], seconds[i], chunks[c]);
    }
  });
}

// On an accelerator the fused ATen kernel updates the master weights; a second list operation narrows them.
void adamw_on_accelerator(const AdamW& adam, std::vector<at::Tensor>& params, std::vector<at::Tensor>& grads,
                          std::vector<at::Tensor>& masters, std::vector<at::Tensor>& firsts,
                          std::vector<at::Tensor>& seconds) {
  if (params.empty()) return;
  std::vector<at::Tensor> wide, steps;
  for (auto& grad : grads) {
    wide.push_back(grad.to(at::kFloat));
    steps.push_back(at::full({}, static_cast<double>(adam.step), grad.options().dtype(at::kFloat)));
  }
  if (adam.grad_scale != 1.0) wide = at::_foreach_mul(wide, at::Scalar(adam.grad_scale));
  at::_fused_adamw_(masters, wide, firsts, seconds, {}, steps, adam.lr, adam.beta1, adam.beta2, adam.weight_decay,
                    adam.eps, false, false);
  std::vector<at::Tensor> targets, sources;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].data_ptr() == masters[i].data_ptr()) continue;
    targets.push_back(params[i]);
    sources.push_back(masters[i]);
  }
  if (!targets.empty()) at::_foreach_copy_(targets, sources);
}

// Rows [chunks * even, heads, k] as [chunks, heads, even, k], and back, in the same memory.
at::Tensor even_chunks(const at::Tensor& rows, int64_t even) {
  return rows.view({rows.size(0) / even, even, rows.size(1), rows.size(2)}).transpose(1, 2);
}

// A tensor that nothing reads, or one in its place.
at::Tensor defined(const at::Tensor& tensor, const at::Tensor& other) { return tensor.defined() ? tensor : other; }

at::Tensor rows_of_chunks(const at::Tensor& chunks) { return chunks.transpose(1, 2).contiguous().flatten(0, 1); }

}  // namespace

extern "C" {

// Moves the tensor out of `tensor` (which Rust frees afterwards) into the sink.
void slime_sink_push(SlimeSink* sink, const at::Tensor* tensor) {
  sink->tensors.push_back(tensor == nullptr ? at::Tensor() : *tensor);
}

size_t slime_sink_len(const SlimeSink* sink) { return sink->tensors.size(); }

at::Tensor* slime_sink_take(SlimeSink* sink, size_t index) { return new at::Tensor(std::move(sink->tensors[index])); }

SlimeSink* slime_sink_new() { return new SlimeSink(); }

void slime_sink_free(SlimeSink* sink) { delete sink; }

// A second handle of the same tensor, owned by the caller.
at::Tensor* slime_tensor_share(const at::Tensor* tensor) { return new at::Tensor(*tensor); }

// Takes ownership of `backward` whatever happens; borrows `forward`.
int slime_custom_function(at::Tensor* const* inputs, size_t count, void* forward, SlimeForward call_forward,
                          void* backward, SlimeBackward call_backward, SlimeRelease release, SlimeSink* outputs,
                          char* error) {
  return guarded(error, [&] {
    ForwardCall call{forward, call_forward,
                     c10::make_intrusive<BackwardClosure>(backward, call_backward, release)};
    auto list = list_of(inputs, count);
    outputs->tensors = RustFunction::apply(at::TensorList(list), &call);
  });
}

int slime_backward(at::Tensor* const* outputs, at::Tensor* const* grads, size_t count, int retain_graph, char* error) {
  return guarded(error, [&] {
    torch::autograd::backward(list_of(outputs, count), list_of(grads, count), retain_graph != 0);
  });
}

// `weight` reordered into oneDNN's own blocks for products with about `rows` rows of inputs.
int slime_pack_linear(const at::Tensor* weight, int64_t rows, SlimeSink* packed, char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    static const auto pack = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                                 .typed<at::Tensor(const at::Tensor&, std::optional<int64_t>)>();
    packed->tensors.push_back(pack.call(weight->detach(), rows));
  });
}

// `x packed^T + bias`; `bias` may be null.
int slime_packed_linear(const at::Tensor* x, const at::Tensor* packed, const at::Tensor* bias, SlimeSink* outputs,
                        char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    static const auto linear =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, c10::string_view,
                              c10::List<std::optional<at::Scalar>>, std::optional<c10::string_view>)>();
    outputs->tensors.push_back(linear.call(*x, *packed, bias == nullptr ? std::nullopt : std::make_optional(*bias),
                                           "none", c10::List<std::optional<at::Scalar>>(), std::nullopt));
  });
}

int slime_current_stream(int64_t device, size_t* stream, char* error) {
  return guarded(error, [&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    *stream = reinterpret_cast<size_t>(
        guard.getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))).native_handle());
  });
}

// A stream of libtorch's pool, by its number there and as a `cudaStream_t`.
int slime_pool_stream(int64_t device, int64_t* id, size_t* handle, char* error) {
  return guarded(error, [&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    const c10::Device at(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    const c10::Stream stream = guard.getStreamFromGlobalPool(at, /*isHighPriority=*/false);
    *id = stream.id();
    *handle = reinterpret_cast<size_t>(stream.native_handle());
  });
}

// Makes a stream the current one of this thread; `previous` gets the number of the one before.
int slime_exchange_stream(int64_t device, int64_t id, int64_t* previous, char* error) {
  return guarded(error, [&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    const c10::Device at(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    guard.exchangeDevice(at);
    *previous = guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, at, id)).id();
  });
}

// The same bits in every run, from here on; see deterministic.rs.
int slime_require_deterministic(char* error) {
  return guarded(error, [&] {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    setenv("NCCL_ALGO", "Ring", /*overwrite=*/0);
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/false);
    // What is made empty is written before it is read.
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
  });
}

int slime_is_deterministic() { return at::globalContext().deterministicAlgorithms() ? 1 : 0; }

// Causal attention of whole chunks, all of them in one call: q [t, heads, k], k and v [s, kv_heads, k]; chunk i has the rows
// cu_q[i]..cu_q[i + 1] of q, the last of the positions cu_k[i]..cu_k[i + 1]. Chunks of `even` rows and as many positions, where
// that is not 0, go through cuDNN, whose backward pass adds in an order of chance. Outputs: the result, then what the backward pass needs.
int slime_varlen_attention(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, const at::Tensor* cu_q,
                           const at::Tensor* cu_k, int64_t max_q, int64_t max_k, int64_t even, SlimeSink* outputs,
                           char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    if (even > 0 && !at::globalContext().deterministicAlgorithms()) {
      auto result = at::_scaled_dot_product_cudnn_attention(even_chunks(*q, even), even_chunks(*k, even),
                                                            even_chunks(*v, even), std::nullopt,
                                                            /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true,
                                                            /*return_debug_mask=*/false);
      outputs->tensors = {rows_of_chunks(std::get<0>(result)), std::get<1>(result), defined(std::get<6>(result), *cu_q),
                          defined(std::get<7>(result), *cu_q)};
      return;
    }
    auto result = at::_flash_attention_forward(*q, *k, *v, *cu_q, *cu_k, max_q, max_k, 0.0, /*is_causal=*/true,
                                               /*return_debug_mask=*/false);
    outputs->tensors = {std::get<0>(result), std::get<1>(result), std::get<2>(result), std::get<3>(result)};
  });
}

// Gradients of q, k and v, from that of the result; `kept` is what the forward pass gave.
int slime_varlen_attention_backward(const at::Tensor* grad, const at::Tensor* q, const at::Tensor* k,
                                    const at::Tensor* v, at::Tensor* const* kept, const at::Tensor* cu_q,
                                    const at::Tensor* cu_k, int64_t max_q, int64_t max_k, int64_t even,
                                    SlimeSink* outputs, char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    if (even > 0 && !at::globalContext().deterministicAlgorithms()) {
      auto grads = at::_scaled_dot_product_cudnn_attention_backward(
          even_chunks(*grad, even), even_chunks(*q, even), even_chunks(*k, even), even_chunks(*v, even),
          even_chunks(*kept[0], even), *kept[1], *kept[2], *kept[3], at::Tensor(), at::Tensor(), at::Tensor(), even,
          even, 0.0, /*is_causal=*/true);
      outputs->tensors = {rows_of_chunks(std::get<0>(grads)), rows_of_chunks(std::get<1>(grads)),
                          rows_of_chunks(std::get<2>(grads))};
      return;
    }
    auto grads = at::_flash_attention_backward(*grad, *q, *k, *v, *kept[0], *kept[1], *cu_q, *cu_k, max_q, max_k, 0.0,
                                               /*is_causal=*/true, *kept[2], *kept[3]);
    outputs->tensors = {std::get<0>(grads), std::get<1>(grads), std::get<2>(grads)};
  });
}

// Forgets the gradient of a leaf; its memory is free where nothing else has it.
int slime_forget_grad(const at::Tensor* tensor, char* error) {
  return guarded(error, [&] { tensor->mutable_grad().reset(); });
}

int slime_has_packed_linear() { return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn() ? 1 : 0; }

int slime_global_norm(at::Tensor* const* tensors, size_t count, double* norm, char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    auto list = list_of(tensors, count);
    check_lists(list, list, "norm");
    *norm = 0;
    if (list.empty()) return;
    if (!list[0].device().is_cpu()) {
      auto norms = at::stack(at::_foreach_norm(list, 2, at::kFloat));
      *norm = at::linalg_vector_norm(norms.to(at::kDouble)).item<double>();
      return;
    }
    auto chunks = chunks_of(list);
    std::vector<double> sums(chunks.size());
    at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        sums[c] = chunk_sum_of_squares(list[chunks[c].tensor], chunks[c].start, chunks[c].end);
      }
    });
    double total = 0;
    for (double sum : sums) total += sum;
    *norm = std::sqrt(total);
  });
}

int slime_adamw(at::Tensor* const* params, at::Tensor* const* grads, at::Tensor* const* masters,
                at::Tensor* const* firsts, at::Tensor* const* seconds, size_t count, double lr, double beta1,
                double beta2, double eps, double weight_decay, double grad_scale, int64_t step, char* error) {
  return guarded(error, [&] {
    at::NoGradGuard no_grad;
    AdamW adam{lr, beta1, beta2, eps, weight_decay, grad_scale, step};
    auto param_list = list_of(params, count), grad_list = list_of(grads, count), master_list = list_of(masters, count),
         first_list = list_of(firsts, count), second_list = list_of(seconds, count);
    check_lists(param_list, param_list, "params");
    check_lists(param_list, grad_list, "grads");
    check_lists(param_list, master_list, "masters");
    check_lists(param_list, first_list, "first moments");
    check_lists(param_list, second_list, "second moments");
    for (size_t i = 0; i < count; ++i) {
      for (const auto& narrow : {param_list[i], grad_list[i]}) {
        TORCH_CHECK(narrow.scalar_type() == at::kFloat || narrow.scalar_type() == at::kBFloat16,
                    "adamw: expected f32 or bf16, got ", narrow.scalar_type());
      }
      for (const auto& wide : {master_list[i], first_list[i], second_list[i]}) {
        TORCH_CHECK(wide.scalar_type() == at::kFloat, "adamw: state must be f32, got ", wide.scalar_type());
      }
    }
    if (count == 0 || param_list[0].device().is_cpu()) {
      adamw_on_cpu(adam, param_list, grad_list, master_list, first_list, second_list);
    } else {
      adamw_on_accelerator(adam, param_list, grad_list, master_list, first_list, second_list);
    }
  });
}

}  // extern "C"
