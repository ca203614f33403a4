// Memory that a device may access: registrations, and their protection domain.

#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/memory_region.h"
#include "transport/verbs/verbs_device.h"

namespace ckv {

// A lane's protection domain: no key of another lane works in it. Must outlive its regions and
// queue pair.
class VerbsDomain {
 public:
  // Creates a domain. `account` is charged for everything created in it; see VerbsLimit.
  static absl::StatusOr<VerbsDomain> Create(std::shared_ptr<VerbsDevice> device,
                                            VerbsAccount account);

  ibv_pd* get() const noexcept { return domain_.get(); }
  const std::shared_ptr<VerbsDevice>& device() const noexcept { return device_; }
  const VerbsAccount& account() const noexcept { return account_; }

 private:
  struct Free {
    void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  };
  VerbsDomain(std::shared_ptr<VerbsDevice> device, VerbsAccount account, ibv_pd* domain)
      : device_(std::move(device)), account_(std::move(account)), domain_(domain) {}

  std::shared_ptr<VerbsDevice> device_;
  VerbsAccount account_;
  std::unique_ptr<ibv_pd, Free> domain_;
};

// Memory of another device (a GPU), exported as a dmabuf.
struct DmabufMemory {
  int fd = -1;
  uint64_t offset = 0;
  size_t bytes = 0;
  uint64_t address = 0;  // the address of its first byte in work requests
};

// The access that a device gets to a region. It may always read the region to send from it.
enum class VerbsAccess {
  kSend,         // nothing else: a requester's requests, the store
  kReceive,      // local writes
  kWindow,       // landing: local writes, and a window may be bound
  kRemoteWrite,  // landing without windows: local writes and the peer's
};

// A registration, which ends with the object. The memory must outlive the object.
class VerbsRegion {
 public:
  // Registers memory of this process.
  //   ResourceExhausted   a limit is reached, or the device or the kernel has no more resources.
  static absl::StatusOr<VerbsRegion> Register(const VerbsDomain& domain,
                                              std::span<const std::byte> memory,
                                              VerbsAccess access);
  // Registers memory of another device.
  //   ResourceExhausted   a limit is reached.
  //   Unimplemented       this device or kernel does not support dmabufs.
  static absl::StatusOr<VerbsRegion> Register(const VerbsDomain& domain, const DmabufMemory& memory,
                                              VerbsAccess access);

  ibv_mr* get() const noexcept { return region_.get(); }
  uint32_t local_key() const noexcept { return region_->lkey; }

 private:
  struct Free {
    void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  };
  VerbsRegion(VerbsBudget::Grant grant, ibv_mr* region)
      : grant_(std::move(grant)), region_(region) {}

  VerbsBudget::Grant grant_;
  std::unique_ptr<ibv_mr, Free> region_;
};

// The registrations by which one lane sends from the store: in segments, and for sending only. Each
// segment is registered some time after its first use, because pinning 64 MiB takes milliseconds.
// The lane's thread calls Append and TakeWants, and one other thread calls RegisterWanted.
class VerbsGather {
 public:
  // `regions` may be empty. The domain and the regions' memory must outlive this.
  VerbsGather(const VerbsDomain* domain, std::span<const MemoryRegion> regions);

  // Appends the scatter list of `run` to `list`. Returns false, and appends nothing, if the run is
  // outside the regions or not wholly registered (yet), or the list has no spare capacity.
  bool Append(std::span<const std::byte> run, std::vector<ibv_sge>& list);

  // Returns whether an Append since the last call needed segments that RegisterWanted would
  // register.
  bool TakeWants() noexcept { return std::exchange(wants_, false); }
  // Registers the segments that were wanted. A refused one is logged and not tried again.
  void RegisterWanted() noexcept;

 private:
  enum class State : uint8_t { kUnused, kWanted, kRegistered, kRefused };
  // A segment of the store. A refused registration is never retried, because a retry at every reply
  // would cost too much; the segment's rows are copied instead.
  struct Segment {
    std::atomic<State> state{State::kUnused};
    std::optional<VerbsRegion> region;  // the lane's thread reads it once kRegistered
  };

  // A region in segments of segment_bytes_; the last one may be shorter.
  struct Segmented {
    MemoryRegion region;
    std::vector<Segment> segments;

    // Compared as numbers: pointers into different objects have no order.
    uintptr_t begin() const noexcept { return reinterpret_cast<uintptr_t>(region.bytes.data()); }
    bool Holds(std::span<const std::byte> run) const noexcept {
      const auto address = reinterpret_cast<uintptr_t>(run.data());
      return address >= begin() && run.size() <= region.bytes.size() &&
             address - begin() <= region.bytes.size() - run.size();
    }
  };

  static State StateOf(const Segment& segment) noexcept;
  static void SetState(Segment& segment, State state) noexcept;
  bool Has(Segment& segment) noexcept;
  absl::StatusOr<VerbsRegion> Register(const MemoryRegion& region, size_t index) const;

  const VerbsDomain* const domain_;
  const size_t segment_bytes_;
  std::vector<Segmented> regions_;
  bool wants_ = false;
};

}  // namespace ckv
