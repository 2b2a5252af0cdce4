// Collectives: gloo moves the numbers, between views of the device's memory, while the host waits;
// the time that they take is that of a link, on a stream of their own, from when the last of the
// ranks is ready.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>

#include "operators.h"

namespace flop {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

inline Tensors view_all_on_host(const Tensors& tensors) {
  Tensors found;
  for (const auto& tensor : tensors) found.push_back(view_on_host(tensor));
  return found;
}

inline std::vector<Tensors> view_all_on_host(const std::vector<Tensors>& lists) {
  std::vector<Tensors> found;
  for (const auto& tensors : lists) found.push_back(view_all_on_host(tensors));
  return found;
}

inline Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors found;
  for (const auto& tensors : lists) found.insert(found.end(), tensors.begin(), tensors.end());
  return found;
}

inline double bytes_of(const Tensors& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += bytes_of(tensor);
  return sum;
}

// To wait for it means that the current stream does, as with NCCL; for a barrier the host does.
class Transfer final : public c10d::Work {
 public:
  Transfer(int rank, OpType type, int device, int stream, int64_t end_ns, Tensors outputs)
      : Work(rank, type),
        device_(device),
        end_ns_(end_ns),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            std::vector<c10::Device>{name_device(device)})) {
    // Whoever uses its value waits for what is on the current stream now.
    const int before = std::exchange(current_streams[device], stream);
    future_->markCompleted(c10::IValue(outputs_));
    current_streams[device] = before;
  }
  bool isCompleted() override {
    return now_ns() >= end_ns_;
  }
  bool isSuccess() const override {
    return true;
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    hold(device_, current_streams[device_], end_ns_);
    if (opType_ == OpType::BARRIER) spin_until(end_ns_);
  }
  Tensors result() override {
    return outputs_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  int device_;
  int64_t end_ns_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// From one rank to another: gloo works in the background, and the host waits when it has to.
class Message final : public c10d::Work {
 public:
  Message(int rank, OpType type, int device, int stream, Tensors kept, WorkPtr inner)
      : Work(rank, type),
        device_(device),
        stream_(stream),
        kept_(std::move(kept)),
        inner_(std::move(inner)) {}
  bool isCompleted() override {
    return inner_->isCompleted();
  }
  bool isSuccess() const override {
    return true;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    inner_->wait(timeout);
    synchronize();
    return true;
  }
  void synchronize() override {
    const double work_ns =
        settings().link_ns + bytes_of(kept_) / settings().link_bytes_per_s * 1e9;
    const char* name = opType_ == OpType::SEND ? "flop::send" : "flop::recv";
    const Span span = enqueue(device_, stream_, work_ns, now_ns());
    note_row(name, span, device_, stream_);
    hold(device_, current_streams[device_], span.end_ns);
  }

 private:
  int device_, stream_;
  Tensors kept_;
  WorkPtr inner_;
};

class Collectives final : public c10d::Backend {
 public:
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  using Call = std::function<WorkPtr()>;

  explicit Collectives(Inner inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {
    for (int device = 0; device < kDevices; ++device) streams_[device] = take_stream(device);
  }

  const std::string getBackendName() const override {
    return "floplink";
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    auto views = view_all_on_host(tensors);
    return run(OpType::BROADCAST, "flop::broadcast", tensors, bytes_of(tensors), 1.0, [&] {
      return inner_->broadcast(views, opts);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    auto views = view_all_on_host(tensors);
    auto plain = opts;
    plain.reduceOp = without_mean(opts.reduceOp);
    auto work = run(OpType::ALLREDUCE, "flop::allreduce", tensors, bytes_of(tensors), 2.0, [&] {
      return inner_->allreduce(views, plain);
    });
    finish_mean(opts.reduceOp, views);
    return work;
  }
  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    WorkPtr last;
    for (auto& tensor : tensors) {
      Tensors one = {tensor};
      last = allreduce(one, opts);
    }
    return last;
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    auto views = view_all_on_host(tensors);
    auto plain = opts;
    plain.reduceOp = without_mean(opts.reduceOp);
    auto work = run(OpType::REDUCE, "flop::reduce", tensors, bytes_of(tensors), 1.0, [&] {
      return inner_->reduce(views, plain);
    });
    if (opts.rootRank == rank_) finish_mean(opts.reduceOp, views);
    return work;
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs,
      Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    auto into = view_all_on_host(outputs);
    auto from = view_all_on_host(inputs);
    const auto flat = flatten(outputs);
    return run(OpType::ALLGATHER, "flop::allgather", flat, bytes_of(flat), 1.0, [&] {
      return inner_->allgather(into, from, opts);
    });
  }
  WorkPtr _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    auto into = view_on_host(output), from = view_on_host(input);
    return run(OpType::_ALLGATHER_BASE, "flop::allgather", {output}, bytes_of(output), 1.0, [&] {
      return inner_->_allgather_base(into, from, opts);
    });
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    WorkPtr last;
    for (size_t i = 0; i < outputs.size(); ++i) last = _allgather_base(outputs[i], inputs[i], opts);
    return last;
  }
  WorkPtr gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    auto into = view_all_on_host(outputs);
    auto from = view_all_on_host(inputs);
    return run(OpType::GATHER, "flop::gather", inputs, bytes_of(inputs) * size_, 1.0, [&] {
      return inner_->gather(into, from, opts);
    });
  }
  WorkPtr scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    auto into = view_all_on_host(outputs);
    auto from = view_all_on_host(inputs);
    return run(OpType::SCATTER, "flop::scatter", outputs, bytes_of(outputs) * size_, 1.0, [&] {
      return inner_->scatter(into, from, opts);
    });
  }
  // Gloo has no reduce-scatter of lists: the sum of everything, of which every rank keeps its part.
  WorkPtr reduce_scatter(
      Tensors& outputs,
      std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    auto into = view_on_host(outputs.at(0));
    Tensors parts;
    for (const auto& part : view_all_on_host(inputs.at(0))) parts.push_back(part.clone());
    return reduce_parts(outputs, into, parts, opts);
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    auto into = view_on_host(output);
    Tensors parts;
    for (const auto& part : view_on_host(input).chunk(size_)) parts.push_back(part.clone());
    return reduce_parts({output}, into, parts, opts);
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    WorkPtr last;
    for (size_t i = 0; i < outputs.size(); ++i) {
      last = _reduce_scatter_base(outputs[i], inputs[i], opts);
    }
    return last;
  }
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& opts) override {
    auto into = view_on_host(output), from = view_on_host(input);
    return run(OpType::ALLTOALL_BASE, "flop::alltoall", {output}, bytes_of(output), 1.0, [&] {
      return inner_->alltoall_base(into, from, output_sizes, input_sizes, opts);
    });
  }
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    Tensors sent;  // what the tensors hold now, whatever is written into them later
    for (const auto& view : view_all_on_host(tensors)) sent.push_back(view.clone());
    return post(OpType::SEND, tensors, sent, inner_->send(sent, rank, tag));
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    auto views = view_all_on_host(tensors);
    return post(OpType::RECV, tensors, views, inner_->recv(views, rank, tag));
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return run(OpType::BARRIER, "flop::barrier", {}, 0, 1.0, [&] { return inner_->barrier(opts); });
  }

 private:
  // Gloo does not divide.
  static c10d::ReduceOp without_mean(const c10d::ReduceOp& op) {
    return op.op_ == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  }
  void finish_mean(const c10d::ReduceOp& op, Tensors& tensors) const {
    if (op.op_ != c10d::ReduceOp::AVG) return;
    for (auto& tensor : tensors) tensor.div_(size_);
  }

  WorkPtr reduce_parts(
      const Tensors& outputs,
      at::Tensor& into,
      Tensors& parts,
      const c10d::ReduceScatterOptions& opts) {
    c10d::AllreduceOptions plain;
    plain.reduceOp = without_mean(opts.reduceOp);
    plain.timeout = opts.timeout;
    auto work = run(
        OpType::_REDUCE_SCATTER_BASE, "flop::reduce_scatter", outputs, bytes_of(parts), 1.0, [&] {
          WorkPtr last;
          for (auto& part : parts) {
            if (last) last->wait();
            Tensors one = {part};
            last = inner_->allreduce(one, plain);
          }
          return last;
        });
    into.copy_(parts.at(rank_).view(into.sizes()));
    Tensors results = {into};
    finish_mean(opts.reduceOp, results);
    return work;
  }

  // `rounds` is how often a rank sends the (n - 1) / n of the bytes that are not its own.
  WorkPtr run(
      OpType type,
      const char* name,
      const Tensors& outputs,
      double bytes,
      double rounds,
      const Call& call) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int device = outputs.empty() ? current_device : outputs[0].device().index();
    const int stream = streams_[device];
    launch(name);
    at::Tensor ready_ns = at::empty({1}, at::kLong);
    *ready_ns.data_ptr<int64_t>() =
        std::max(busy_until(device, current_streams[device]), busy_until(device, stream));
    Tensors agreed = {ready_ns};
    c10d::AllreduceOptions latest;
    latest.reduceOp = c10d::ReduceOp::MAX;
    inner_->allreduce(agreed, latest)->wait();
    call()->wait();
    const double share = static_cast<double>(size_ - 1) / size_;
    const double work_ns =
        settings().link_ns + rounds * share * bytes / settings().link_bytes_per_s * 1e9;
    const Span span = enqueue(device, stream, work_ns, *ready_ns.data_ptr<int64_t>());
    note_row(name, span, device, stream);
    return c10::make_intrusive<Transfer>(rank_, type, device, stream, span.end_ns, outputs);
  }

  WorkPtr post(OpType type, const Tensors& tensors, const Tensors& kept, WorkPtr work) {
    const int device = tensors.at(0).device().index();
    launch(type == OpType::SEND ? "flop::send" : "flop::recv");
    return c10::make_intrusive<Message>(
        rank_, type, device, streams_[device], kept, std::move(work));
  }

  Inner inner_;
  int streams_[kDevices];
};

}  // namespace flop
