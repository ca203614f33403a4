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

VerbsGather::VerbsGather(const VerbsDomain* domain, std::span<const std::byte> memory)
    : domain_(domain),
      memory_(memory),
      segment_bytes_(std::min<uint64_t>(domain->device()->options().gather_segment_bytes,
                                        domain->device()->limits().max_mr_size)),
      segments_((memory.size() + segment_bytes_ - 1) / segment_bytes_) {}

bool VerbsGather::Append(std::span<const std::byte> run, std::vector<ibv_sge>& list) {
  // Compared as numbers: pointers into different objects have no order.
  const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
  const auto address = reinterpret_cast<uintptr_t>(run.data());
  if (address < begin || run.size() > memory_.size() ||
      address - begin > memory_.size() - run.size()) {
    return false;
  }
  const size_t offset = address - begin;
  const size_t end = offset + run.size();
  bool all = true;  // all are asked for together, not one per reply
  for (size_t at = offset; at < end; at = (at / segment_bytes_ + 1) * segment_bytes_) {
    if (!Has(at / segment_bytes_)) all = false;
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
        {begin + at, static_cast<uint32_t>(bytes), segments_[index].region->local_key()});
    at += bytes;
  }
  return true;
}

// Pairs with Tell: a reader of the state also sees what the other thread did to the segment before.
VerbsGather::State VerbsGather::Told(const Segment& segment) noexcept {
  return segment.state.load(std::memory_order_acquire);
}
void VerbsGather::Tell(Segment& segment, State state) noexcept {
  segment.state.store(state, std::memory_order_release);
}

bool VerbsGather::Has(size_t index) noexcept {
  Segment& segment = segments_[index];
  const State state = Told(segment);
  if (state == State::kUnused) Tell(segment, State::kWanted);
  wants_ |= state == State::kUnused || state == State::kWanted;
  return state == State::kRegistered;
}

void VerbsGather::RegisterWanted() noexcept {
  for (size_t index = 0; index < segments_.size(); ++index) {
    Segment& segment = segments_[index];
    if (Told(segment) != State::kWanted) continue;
    const size_t offset = index * segment_bytes_;
    absl::StatusOr<VerbsRegion> region = VerbsRegion::Register(
        *domain_, memory_.subspan(offset, std::min(segment_bytes_, memory_.size() - offset)),
        VerbsAccess::kSend);
    if (!region.ok()) {
      Log().warn("verbs: replies from part of the store are copied: {}",
                 std::string(region.status().message()));
      Tell(segment, State::kRefused);
      continue;
    }
    segment.region.emplace(*std::move(region));
    Tell(segment, State::kRegistered);
  }
}

}  // namespace ckv
