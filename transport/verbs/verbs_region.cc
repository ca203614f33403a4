// Registered memory. VerbsRegion::Register takes its size from the device's budget first.
// VerbsGather registers a store by segments, on demand: Append, on the lane's thread, lists a run
// if its segments are registered, and marks the others as wanted; RegisterWanted, on another
// thread, registers them. A segment's states: unused, wanted, then registered or refused.

#include "transport/verbs/verbs_region.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

int AccessFlags(VerbsAccess access) {
  switch (access) {
    case VerbsAccess::kSend:
      return 0;
    case VerbsAccess::kReceive:
      return IBV_ACCESS_LOCAL_WRITE;
    case VerbsAccess::kWindow:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    case VerbsAccess::kRemoteWrite:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  }
  return 0;
}

}  // namespace

absl::StatusOr<VerbsDomain> VerbsDomain::Create(std::shared_ptr<VerbsDevice> device,
                                                VerbsAccount account) {
  ibv_pd* domain = ibv_alloc_pd(device->context());
  if (domain == nullptr) return ErrnoStatus("ibv_alloc_pd");
  return VerbsDomain(std::move(device), std::move(account), domain);
}

absl::StatusOr<VerbsRegion> VerbsRegion::Register(const VerbsDomain& domain,
                                                  std::span<const std::byte> memory,
                                                  VerbsAccess access) {
  CKV_ASSIGN_OR_RETURN(VerbsBudget::Grant grant,
                       domain.device()->budget().Take(
                           domain.account(), {.regions = 1, .region_bytes = memory.size()}));
  // The cast only drops const: without local writes the device reads.
  void* const address = const_cast<std::byte*>(memory.data());
  ibv_mr* region = ibv_reg_mr(domain.get(), address, memory.size(), AccessFlags(access));
  if (region == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("registering %d bytes: %s (RLIMIT_MEMLOCK, or the device's registrations)",
                        memory.size(), std::strerror(errno)));
  }
  return VerbsRegion(std::move(grant), region);
}

absl::StatusOr<VerbsRegion> VerbsRegion::Register(const VerbsDomain& domain,
                                                  const DmabufMemory& memory, VerbsAccess access) {
  CKV_ASSIGN_OR_RETURN(VerbsBudget::Grant grant,
                       domain.device()->budget().Take(
                           domain.account(), {.regions = 1, .region_bytes = memory.bytes}));
  ibv_mr* region = ibv_reg_dmabuf_mr(domain.get(), memory.offset, memory.bytes, memory.address,
                                     memory.fd, AccessFlags(access));
  if (region == nullptr) {
    return absl::UnimplementedError(
        absl::StrFormat("registering a dmabuf of %d bytes: %s (needs a device and kernel with "
                        "peer-to-peer DMA; copy to host memory instead)",
                        memory.bytes, std::strerror(errno)));
  }
  return VerbsRegion(std::move(grant), region);
}

VerbsGather::VerbsGather(const VerbsDomain* domain, std::span<const MemoryRegion> regions)
    : domain_(domain),
      segment_bytes_(std::min<uint64_t>(domain->device()->options().gather_segment_bytes,
                                        domain->device()->limits().max_mr_size)) {
  regions_.reserve(regions.size());
  for (const MemoryRegion& region : regions) {
    const size_t count = (region.bytes.size() + segment_bytes_ - 1) / segment_bytes_;
    regions_.push_back({region, std::vector<Segment>(count)});
  }
}

bool VerbsGather::Append(std::span<const std::byte> run, std::vector<ibv_sge>& list) {
  const auto of = std::find_if(regions_.begin(), regions_.end(),
                               [&](const Segmented& one) { return one.Holds(run); });
  if (of == regions_.end()) return false;
  const size_t offset = reinterpret_cast<uintptr_t>(run.data()) - of->begin();
  const size_t end = offset + run.size();
  bool all = true;  // all are requested together, not one per reply
  for (size_t at = offset; at < end; at = (at / segment_bytes_ + 1) * segment_bytes_) {
    if (!Has(of->segments[at / segment_bytes_])) all = false;
  }
  if (!all) return false;
  const size_t before = list.size();
  for (size_t at = offset; at < end;) {
    if (list.size() == list.capacity()) {
      list.resize(before);
      return false;
    }
    const size_t index = at / segment_bytes_;
    const size_t bytes = std::min(end, (index + 1) * segment_bytes_) - at;
    list.push_back(
        {of->begin() + at, static_cast<uint32_t>(bytes), of->segments[index].region->local_key()});
    at += bytes;
  }
  return true;
}

// Pairs with `Tell`: a reader of the state also sees what the other thread did to the segment
// before.
VerbsGather::State VerbsGather::StateOf(const Segment& segment) noexcept {
  return segment.state.load(std::memory_order_acquire);
}
void VerbsGather::SetState(Segment& segment, State state) noexcept {
  segment.state.store(state, std::memory_order_release);
}

bool VerbsGather::Has(Segment& segment) noexcept {
  const State state = StateOf(segment);
  if (state == State::kUnused) SetState(segment, State::kWanted);
  wants_ |= state == State::kUnused || state == State::kWanted;
  return state == State::kRegistered;
}

absl::StatusOr<VerbsRegion> VerbsGather::Register(const MemoryRegion& region, size_t index) const {
  const size_t offset = index * segment_bytes_;
  const auto bytes =
      region.bytes.subspan(offset, std::min(segment_bytes_, region.bytes.size() - offset));
  if (region.type != RegionType::kDmabuf)
    return VerbsRegion::Register(*domain_, bytes, VerbsAccess::kSend);
  const DmabufMemory memory = {region.dmabuf_fd, region.dmabuf_offset + offset, bytes.size(),
                               reinterpret_cast<uintptr_t>(bytes.data())};
  return VerbsRegion::Register(*domain_, memory, VerbsAccess::kSend);
}

void VerbsGather::RegisterWanted() noexcept {
  for (Segmented& one : regions_) {
    for (size_t index = 0; index < one.segments.size(); ++index) {
      Segment& segment = one.segments[index];
      if (StateOf(segment) != State::kWanted) continue;
      absl::StatusOr<VerbsRegion> region = Register(one.region, index);
      if (!region.ok()) {
        Log().warn("verbs: replies from part of the store ({} memory) are copied: {}",
                   RegionTypeName(one.region.type), std::string(region.status().message()));
        SetState(segment, State::kRefused);
        continue;
      }
      segment.region.emplace(*std::move(region));
      SetState(segment, State::kRegistered);
    }
  }
}

}  // namespace ckv
