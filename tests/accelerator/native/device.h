// What torch asks of a device: memory with statistics and a limit, streams, events, hooks.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "timeline.h"

namespace flop {

inline c10::Device name_device(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

inline void require_device(int index) {
  TORCH_CHECK(0 <= index && index < kDevices, "there is no device flop:", index);
}

struct Block {
  void* address;
  size_t bytes;
  int device;
};

// Every tensor has a block of its own: nothing is cached, nothing is split.
class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t wanted_bytes) override {
    const int device = current_device;
    const size_t bytes = (wanted_bytes + 511) / 512 * 512;
    if (bytes == 0) return {nullptr, nullptr, &release, name_device(device)};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& held = stats_[device];
      const auto limit_bytes = static_cast<size_t>(settings().memory_bytes);
      const auto held_bytes = static_cast<size_t>(held.allocated_bytes[0].current);
      if (held_bytes + bytes > limit_bytes) {
        ++held.num_ooms;
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "flop out of memory. Tried to allocate ", bytes,
            " bytes. Device ", device, " has ", limit_bytes, " bytes, of which ", held_bytes,
            " are in use.");
      }
      for (auto* sum : sums(held)) (*sum)[0].increase(bytes);
      for (auto* count : counts(held)) (*count)[0].increase(1);
      timeline().is_used[device] = true;
    }
    void* address = c10::GetCPUAllocator()->raw_allocate(bytes);
    std::memset(address, 0xff, bytes);  // NaN, for whoever reads what was never written
    return {address, new Block{address, bytes, device}, &release, name_device(device)};
  }

  static void release(void* context) {
    if (context == nullptr) return;
    auto* block = static_cast<Block*>(context);
    auto& self = instance();
    {
      std::lock_guard<std::mutex> lock(self.mutex_);
      auto& held = self.stats_[block->device];
      for (auto* sum : sums(held)) (*sum)[0].decrease(block->bytes);
      for (auto* count : counts(held)) (*count)[0].decrease(1);
    }
    c10::GetCPUAllocator()->raw_deallocate(block->address);
    delete block;
  }

  static Memory& instance() {
    static auto* memory = new Memory;
    return *memory;
  }

  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool initialized() override {
    return timeline().is_used[0] || timeline().is_used[1];
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    require_device(device);
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* each : all(stats_[device])) (*each)[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* each : all(stats_[device])) (*each)[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto total = static_cast<size_t>(settings().memory_bytes);
    return {total - getDeviceStats(device).allocated_bytes[0].current, total};
  }

 private:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;
  using Arrays = std::vector<c10::CachingAllocator::StatArray*>;
  static Arrays sums(Stats& s) {
    return {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes};
  }
  static Arrays counts(Stats& s) {
    return {&s.allocation, &s.active, &s.segment};
  }
  static Arrays all(Stats& s) {
    auto found = sums(s);
    for (auto* count : counts(s)) found.push_back(count);
    return found;
  }
  std::mutex mutex_;
  Stats stats_[kDevices];
};

struct Event {
  int64_t due_ns;
};

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  c10::Device getDevice() const override {
    return name_device(current_device);
  }
  void setDevice(c10::Device device) const override {
    require_device(device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  static c10::Stream name_stream(int device, int stream) {
    return c10::Stream(c10::Stream::UNSAFE, name_device(device), stream);
  }
  static int index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  c10::Stream getStream(c10::Device device) const override {
    return name_stream(index_of(device), current_streams[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return name_stream(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return name_stream(index_of(device), take_stream(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return name_stream(index_of(device), take_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = static_cast<int>(stream.id());
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    attend();
    return busy_until(stream.device_index(), static_cast<int>(stream.id())) <= now_ns();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize_stream(stream.device_index(), static_cast<int>(stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device < 0 ? current_device : device);
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex,
      const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    auto* mine = static_cast<Event*>(*event);
    mine->due_ns = busy_until(stream.device_index(), static_cast<int>(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto due_ns = static_cast<Event*>(event)->due_ns;
    hold(stream.device_index(), static_cast<int>(stream.id()), due_ns);
  }
  bool queryEvent(void* event) const override {
    attend();
    return event == nullptr || static_cast<Event*>(event)->due_ns <= now_ns();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) spin_until(static_cast<Event*>(event)->due_ns);
    attend();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  // torch has made sure that both have passed.
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(settings().has_timed_events, "flop has no events with times.");
    return static_cast<double>(static_cast<Event*>(second)->due_ns -
                               static_cast<Event*>(first)->due_ns) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return timeline().is_used[device];
  }
  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    require_device(device);
    current_device = device;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    if (device >= 0) setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const int before = std::exchange(current_device, storage.device().index());
    c10::DataPtr fresh = Memory::instance().allocate(bytes);
    current_device = before;
    const size_t kept_bytes = std::min(bytes, storage.nbytes());
    if (kept_bytes > 0) std::memcpy(fresh.get(), storage.data(), kept_bytes);
    storage.set_data_ptr(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};

inline void register_device() {
  c10::SetAllocator(kType, &Memory::instance());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace flop
