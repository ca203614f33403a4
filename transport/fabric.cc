#include "transport/fabric.h"

#include <sched.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/host/platform.h"
#include "transport/handshake.h"

namespace ckv {
namespace {

struct NamedFabric {
  FabricKind kind;
  std::string_view name;
};
constexpr NamedFabric kFabricNames[] = {
    {FabricKind::kLoopback, "loopback"},
    {FabricKind::kShm, "shm"},
    {FabricKind::kTcp, "tcp"},
    {FabricKind::kVerbs, "verbs"},
};

std::string ReadHostIdentity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat network = {};
  if (boot_id.empty() || stat("/proc/self/ns/net", &network) != 0) {
    // Without /proc it is unknown who can reach whom. A random text equals no other, so shm is not
    // tried.
    return absl::StrFormat("unknown-%016x%016x", RandomWord(), RandomWord());
  }
  return absl::StrFormat("%s/%d:%d", boot_id, network.st_dev, network.st_ino);
}

}  // namespace

std::string_view FabricName(FabricKind kind) {
  for (const NamedFabric& fabric : kFabricNames) {
    if (fabric.kind == kind) return fabric.name;
  }
  return "unknown";
}

absl::StatusOr<FabricKind> ParseFabricName(std::string_view name) {
  for (const NamedFabric& fabric : kFabricNames) {
    if (fabric.name == name) return fabric.kind;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("fabric \"%s\" is none of loopback, shm, tcp, verbs", name));
}

absl::StatusOr<UniqueFd> RequestLane::TakeDescriptor(uint32_t /*slot*/) noexcept {
  return absl::UnimplementedError("this fabric passes no descriptors");
}

absl::Status ServeLane::NoDmabuf() const {
  return absl::UnimplementedError(absl::StrFormat(
      "a lane over %s does not send from memory of a device: copy it first", FabricName(kind())));
}

absl::Status ServeLane::PostGather(uint32_t slot, uint32_t head_bytes,
                                   std::span<const std::span<const std::byte>> runs,
                                   RegionType type) noexcept {
  if (type == RegionType::kDmabuf) return NoDmabuf();
  CKV_CHECK(runs.size() <= kGatherRunCountMax);
  std::span<std::byte> rest = reply(slot);
  CKV_CHECK(head_bytes <= rest.size());
  rest = rest.subspan(head_bytes);
  size_t bytes = head_bytes;
  for (const std::span<const std::byte> run : runs) {
    CKV_CHECK(run.size() <= rest.size());
    if (!run.empty()) std::memcpy(rest.data(), run.data(), run.size());
    rest = rest.subspan(run.size());
    bytes += run.size();
  }
  return Post(slot, static_cast<uint32_t>(bytes));
}

absl::Status RequestLane::PinSlots(std::shared_ptr<MemoryPinner> pinner) {
  CKV_RETURN_IF_ERROR(DoPinSlots(std::move(pinner)));
  slot_type_ = RegionType::kPinned;
  return absl::OkStatus();
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): lanes that can, keep it
absl::Status RequestLane::DoPinSlots(std::shared_ptr<MemoryPinner> /*pinner*/) {
  return absl::UnimplementedError("a lane whose slots cannot be pinned");
}

absl::Status ServeLane::PostWithDescriptor(uint32_t /*slot*/, uint32_t /*bytes*/,
                                           int /*fd*/) noexcept {
  return absl::UnimplementedError("this fabric passes no descriptors");
}

absl::Status ValidateLaneShape(const LaneShape& shape) {
  if (shape.slot_count == 0 || shape.slot_count > kSlotCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lane of %d slots, must be 1 to %d", shape.slot_count, kSlotCountMax));
  }
  if (shape.request_bytes_max == 0 || shape.request_bytes_max > kSlotBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("requests of %d bytes, must be 1 to %d",
                                                      shape.request_bytes_max, kSlotBytesMax));
  }
  if (shape.reply_bytes_max == 0 || shape.reply_bytes_max > kSlotBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("replies of %d bytes, must be 1 to %d",
                                                      shape.reply_bytes_max, kSlotBytesMax));
  }
  const uint64_t bytes =
      (uint64_t{shape.request_bytes_max} + shape.reply_bytes_max) * shape.slot_count;
  if (bytes > kLaneBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lane of %d bytes in all, limit %d", bytes, kLaneBytesMax));
  }
  return absl::OkStatus();
}

std::string HostIdentity() {
  static const std::string* const identity = new std::string(ReadHostIdentity());
  return *identity;
}

uint32_t ProcessorCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 0;
}

}  // namespace ckv
