// Rows of the device for torch.profiler, each linked to the operator that queued it.
#pragma once

#define USE_KINETO
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include "timeline.h"

namespace flop {

struct Row {
  std::string name;
  Span span;
  int device, stream;
  uint64_t correlation;
};

struct Recorder {
  std::mutex mutex;
  bool is_recording = false;
  std::vector<Row> rows;
};

inline Recorder& recorder() {
  static auto* found = new Recorder;
  return *found;
}

inline thread_local std::vector<uint64_t> correlations;

inline void note_row(const std::string& name, Span span, int device, int stream) {
  std::lock_guard<std::mutex> lock(recorder().mutex);
  if (!recorder().is_recording) return;
  const uint64_t correlation = correlations.empty() ? 0 : correlations.back();
  recorder().rows.push_back({name, span, device, stream, correlation});
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard<std::mutex> lock(recorder().mutex);
    recorder().rows.clear();
    recorder().is_recording = true;
  }
  void stop() override {
    std::lock_guard<std::mutex> lock(recorder().mutex);
    recorder().is_recording = false;
    rows_ = std::move(recorder().rows);
  }
  std::vector<std::string> errors() override {
    return {};
  }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(
      libkineto::ActivityLogger& logger,
      libkineto::getLinkedActivityCallback find_linked,
      int64_t,
      int64_t) override {
    using namespace std::chrono;
    const auto wall = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
    const int64_t offset_ns = wall - now_ns();
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "flop");
    for (const auto& row : rows_) {
      buffer_->emplace_activity(
          buffer_->span, libkineto::ActivityType::CONCURRENT_KERNEL, row.name);
      auto& activity = *buffer_->activities.back();
      activity.startTime = row.span.start_ns + offset_ns;
      activity.endTime = row.span.end_ns + offset_ns;
      activity.id = static_cast<int32_t>(row.correlation);
      activity.device = row.device;
      activity.resource = row.stream;
      activity.linked = find_linked(static_cast<int32_t>(row.correlation));
      if (activity.linked != nullptr) {
        activity.flow.id = static_cast<uint32_t>(row.correlation);
        activity.flow.type = libkineto::kLinkAsyncCpuGpu;
        activity.flow.start = 0;
      }
      logger.handleGenericActivity(activity);
    }
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr;
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override {
    correlations.push_back(id);
  }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
  }

 private:
  std::vector<Row> rows_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string text = "flop";
    return text;
  }
  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> types = {
        libkineto::ActivityType::CONCURRENT_KERNEL};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>&, const libkineto::Config&) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t,
      int64_t,
      const std::set<libkineto::ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace flop
