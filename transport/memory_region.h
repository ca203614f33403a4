// Memory that a fabric may send in place, declared in advance and by type.
//
//   options.gather_regions = {{RegionType::kHost, store.memory()},
//                             {RegionType::kDmabuf, device_addresses, dmabuf_fd, /*offset=*/0}};

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace ckv {

enum class RegionType : uint8_t {
  kHost = 0,    // memory of this process
  kPinned = 1,  // page-locked memory of this process, which a device can read and write
  kDmabuf = 2,  // memory of a device, exported as a dmabuf; the CPU never reads it
};

// Returns "host", "pinned" or "dmabuf".
constexpr std::string_view RegionTypeName(RegionType type) {
  switch (type) {
    case RegionType::kHost:
      return "host";
    case RegionType::kPinned:
      return "pinned";
    default:
      return "dmabuf";
  }
}

// Borrowed: the memory and the descriptor must outlive the listener that receives them, and its
// lanes.
struct MemoryRegion {
  RegionType type = RegionType::kHost;
  // The addresses that the spans of PostGather use. Those of a dmabuf are the device's, and this
  // process never reads them. Regions must not overlap.
  std::span<const std::byte> bytes;
  int dmabuf_fd = -1;          // kDmabuf only
  uint64_t dmabuf_offset = 0;  // offset of `bytes` in the dmabuf
};

// Page-locks memory that a fabric allocated, so that a device can read and write it in place.
// Thread-safe.
class MemoryPinner {
 public:
  virtual ~MemoryPinner() = default;
  // Pins whole pages, which stay mapped until Unpin of the same span.
  //   ResourceExhausted   the system cannot lock more memory, or the device cannot map more.
  virtual absl::Status Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::span<std::byte> memory) noexcept = 0;
};

// Pins with the Pin and Unpin of a device's backend (attention/backend.h), which must outlive it.
template <typename Device>
class PinnerOf final : public MemoryPinner {
 public:
  explicit PinnerOf(Device* device) : device_(device) {}
  absl::Status Pin(std::span<std::byte> memory) override { return device_->Pin(memory); }
  void Unpin(std::span<std::byte> memory) noexcept override { device_->Unpin(memory); }

 private:
  Device* const device_;
};

}  // namespace ckv
