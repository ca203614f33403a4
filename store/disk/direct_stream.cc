// Reads a range with io_uring and O_DIRECT. StreamDirectly, in order: makes the ring, which fails
// where it is forbidden; maps memory for all blocks; starts as many reads as there are blocks of
// memory; then waits for the next block in order, hands it to the caller, and starts the next read
// into its memory. Nothing is in progress when it returns. One thread.

#include "store/disk/direct_stream.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/memory/huge_pages.h"

namespace ckv {
namespace {

// Alignment of offsets, lengths and memory: the most that devices and file systems require.
constexpr uint64_t kAlignment = 4096;

// The reads of one call. Blocks are numbered from the file's first aligned byte on.
class Reads {
 public:
  Reads(io_uring* ring, int fd, std::byte* memory, uint64_t begin, uint64_t end)
      : ring_(ring), fd_(fd), memory_(memory), begin_(begin), end_(end) {}
  // Memory that the device may still write to must stay: nothing is left under way.
  ~Reads() {
    while (under_way_ > 0 && Collect()) {
    }
  }

  uint64_t count() const { return (end_ - begin_ + kDirectBlockBytes - 1) / kDirectBlockBytes; }
  uint64_t at(uint64_t block) const { return begin_ + block * kDirectBlockBytes; }
  const std::byte* memory(uint64_t block) const {
    return memory_ + block % kDirectBlockCount * kDirectBlockBytes;
  }
  // Returns the outcome of that block, whose wait is over: bytes that were read, or a negative
  // errno.
  int64_t result(uint64_t block) const { return results_[block % kDirectBlockCount]; }

  void Start(uint64_t block) {
    io_uring_sqe* const entry = io_uring_get_sqe(ring_);
    CKV_CHECK(entry != nullptr);  // the ring has as many as there are blocks
    const uint64_t bytes = std::min(kDirectBlockBytes, end_ - at(block));
    io_uring_prep_read(entry, fd_, const_cast<std::byte*>(memory(block)),
                       static_cast<unsigned>(bytes), at(block));
    io_uring_sqe_set_data64(entry, block);
    done_[block % kDirectBlockCount] = false;
    ++under_way_;
  }
  // Returns false as Collect does.
  bool Submit() {
    const int submitted = io_uring_submit(ring_);
    return submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN;
  }
  bool Wait(uint64_t block) {
    while (!done_[block % kDirectBlockCount]) {
      if (!Collect()) return false;
    }
    return true;
  }

 private:
  // Waits for at least one more read. Returns false if the ring fails; then the state of the reads
  // in progress is unknown.
  bool Collect() {
    const int waited = io_uring_submit_and_wait(ring_, 1);
    if (waited < 0 && waited != -EINTR && waited != -EAGAIN) return false;
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(ring_, &completion) == 0) {
      const uint64_t block = io_uring_cqe_get_data64(completion);
      results_[block % kDirectBlockCount] = completion->res;
      done_[block % kDirectBlockCount] = true;
      --under_way_;
      io_uring_cqe_seen(ring_, completion);
    }
    return true;
  }

  io_uring* const ring_;
  const int fd_;
  std::byte* const memory_;
  const uint64_t begin_;
  const uint64_t end_;
  uint32_t under_way_ = 0;
  std::array<bool, kDirectBlockCount> done_{};
  std::array<int64_t, kDirectBlockCount> results_{};
};

absl::Status Check(int64_t result, uint64_t at, uint64_t needed, bool first) {
  if (result >= static_cast<int64_t>(needed)) return absl::OkStatus();
  if (first && (result == -EINVAL || result == -EOPNOTSUPP))
    return absl::UnimplementedError("no direct reads of this file");
  if (result < 0) {
    return absl::UnavailableError(
        absl::StrFormat("reading byte %d: %s", at, std::strerror(static_cast<int>(-result))));
  }
  return absl::DataLossError(absl::StrFormat("it ends at byte %d", at + result));
}

}  // namespace

absl::Status StreamDirectly(int fd, uint64_t offset, uint64_t bytes,
                            absl::FunctionRef<absl::Status(std::span<const std::byte>)> take) {
  if (bytes == 0) return absl::OkStatus();
  const int direct =
      open(absl::StrFormat("/proc/self/fd/%d", fd).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct < 0) return absl::UnimplementedError("no direct reads of this file");
  const absl::Cleanup close_file = [direct] { close(direct); };
  io_uring ring;
  // Fails here if the kernel or the container forbids it.
  if (io_uring_queue_init(kDirectBlockCount, &ring, 0) != 0)
    return absl::UnimplementedError("no io_uring");
  const absl::Cleanup close_ring = [&ring] { io_uring_queue_exit(&ring); };
  // In huge pages, because the kernel references each page of a read in progress.
  const auto memory = PagedMemory::Map(kDirectBlockCount * kDirectBlockBytes, PagePolicy::kAuto);
  if (!memory.ok()) return absl::UnimplementedError("no memory for direct reads");

  const uint64_t end = offset + bytes;
  const uint64_t aligned_end = (end + kAlignment - 1) / kAlignment * kAlignment;
  Reads reads(&ring, direct, memory->base(), offset / kAlignment * kAlignment, aligned_end);
  uint64_t started = 0;
  for (uint64_t block = 0; block < reads.count(); ++block) {
    while (started < reads.count() && started < block + kDirectBlockCount) reads.Start(started++);
    // Now, not when this waits next: the device works while a block is taken.
    if (!reads.Submit() || !reads.Wait(block)) return absl::UnavailableError("io_uring fails");
    const uint64_t at = reads.at(block);
    const uint64_t block_end = std::min(at + kDirectBlockBytes, end);
    CKV_RETURN_IF_ERROR(Check(reads.result(block), at, block_end - at, block == 0));
    const uint64_t begin = std::max(at, offset);
    CKV_RETURN_IF_ERROR(take({reads.memory(block) + (begin - at), block_end - begin}));
  }
  return absl::OkStatus();
}

bool IsCached(int fd, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return true;
  // One byte at either end is enough, because files are read, and dropped from the cache, as a
  // whole.
  for (const uint64_t at : {offset, offset + bytes - 1}) {
    std::byte byte;
    iovec one_byte = {&byte, 1};
    if (preadv2(fd, &one_byte, 1, static_cast<off_t>(at), RWF_NOWAIT) != 1) return false;
  }
  return true;
}

}  // namespace ckv
