#include "transport/lane_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPageBytes = 4096;

constexpr size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

absl::StatusOr<std::byte*> Map(int fd, size_t bytes) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) return ErrnoStatus("mmap of a lane");
  return static_cast<std::byte*>(base);
}

}  // namespace

SlotLayout LayOutSlots(const LaneShape& shape, size_t first) {
  SlotLayout layout;
  layout.request_stride = RoundUp(shape.request_bytes_max, 64);
  layout.reply_stride = RoundUp(shape.reply_bytes_max, 64);
  layout.replies = RoundUp(first + layout.request_stride * shape.slot_count, kPageBytes);
  layout.total_bytes = RoundUp(layout.replies + layout.reply_stride * shape.slot_count, kPageBytes);
  return layout;
}

LaneMemory::LaneMemory(UniqueFd fd, std::byte* base, const LaneShape& shape)
    : fd_(std::move(fd)), base_(base), shape_(shape), layout_(LayOutSlots(shape, kControlBytes)) {}

LaneMemory::LaneMemory(LaneMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      shape_(other.shape_),
      layout_(other.layout_),
      pinner_(std::move(other.pinner_)) {}

LaneMemory::~LaneMemory() {
  if (pinner_ != nullptr) pinner_->Unpin(slots());
  if (base_ != nullptr) munmap(base_, layout_.total_bytes);
}

absl::Status LaneMemory::Pin(std::shared_ptr<MemoryPinner> pinner) {
  CKV_CHECK(pinner_ == nullptr);
  if (pinner == nullptr) return absl::OkStatus();
  if (absl::Status pinned = pinner->Pin(slots()); !pinned.ok()) {
    return Annotate(pinned, absl::StrFormat("pinning the slots of a lane (%d KiB; open fewer or "
                                            "smaller lanes, or raise the limit of locked memory, "
                                            "ulimit -l, of the process that pins them)",
                                            slots().size() >> 10));
  }
  pinner_ = std::move(pinner);
  return absl::OkStatus();
}

absl::StatusOr<LaneMemory> LaneMemory::Create(const LaneShape& shape) {
  const size_t bytes = LayOutSlots(shape, kControlBytes).total_bytes;
  UniqueFd fd(memfd_create("ckv-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus("sealing a lane");
  CKV_ASSIGN_OR_RETURN(std::byte * base, Map(fd.get(), bytes));
  return LaneMemory(std::move(fd), base, shape);
}

absl::StatusOr<LaneMemory> LaneMemory::Adopt(UniqueFd fd, const LaneShape& shape) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the peer's region is not sealed (seals 0x%x)", seals));
  }
  // Huge pages are taken from a pool when first touched. If the pool is empty, the touch kills this
  // process.
  struct statfs system = {};
  if (fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("the peer's region is not of ordinary pages in memory");
  }
  const size_t bytes = LayOutSlots(shape, kControlBytes).total_bytes;
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the peer's region has %d bytes, a lane of this shape %d", info.st_size, bytes));
  }
  CKV_ASSIGN_OR_RETURN(std::byte * base, Map(fd.get(), bytes));
  return LaneMemory(UniqueFd(), base, shape);  // a mapping needs no descriptor
}

absl::StatusOr<LaneMemory> LaneMemory::CreatePrivate(const LaneShape& shape) {
  CKV_ASSIGN_OR_RETURN(std::byte * base, Map(-1, LayOutSlots(shape, kControlBytes).total_bytes));
  return LaneMemory(UniqueFd(), base, shape);
}

}  // namespace ckv
