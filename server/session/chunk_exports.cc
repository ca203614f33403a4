#include "server/session/chunk_exports.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

bool Same(ChunkLocator a, ChunkLocator b) {
  return a.slot == b.slot && a.generation == b.generation;
}

absl::Status CopyTensors(const Chunk& chunk, std::byte* to, const std::atomic<bool>& stop) {
  for (uint32_t t = 0; t < chunk.layout().tensor_count(); ++t) {
    if (stop.load(std::memory_order_relaxed)) return absl::CancelledError("the holder stops");
    const std::span<const std::byte> rows = chunk.tensor(t);
    std::byte* const copy = to + chunk.layout().begin(t);
    std::memcpy(copy, rows.data(), rows.size());
    if (ChecksumOf({copy, rows.size()}) == chunk.info().tensor_checksums[t]) continue;
    return absl::DataLossError(absl::StrFormat("chunk %s: the rows of %s are not what was put",
                                               chunk.info().id.ToHex(),
                                               chunk.geometry().TensorName(t)));
  }
  return absl::OkStatus();
}

}  // namespace

int ChunkExports::Find(ChunkLocator chunk) {
  const auto it = std::find_if(exports_.begin(), exports_.end(),
                               [chunk](const Export& e) { return Same(e.chunk, chunk); });
  if (it == exports_.end()) return -1;
  exports_.splice(exports_.begin(), exports_, it);
  return exports_.front().fd.get();
}

absl::Status ChunkExports::CheckRoom(const Chunk& chunk) const {
  if (chunk.layout().total_bytes() <= bytes_max_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("a chunk of %d bytes, this holder keeps %d bytes of chunks to hand over "
                      "(map_bytes_max): fetch its rows instead",
                      chunk.layout().total_bytes(), bytes_max_));
}

absl::StatusOr<UniqueFd> ChunkExports::Make(const Chunk& chunk, const std::atomic<bool>& stop) {
  const size_t bytes = chunk.layout().total_bytes();
  UniqueFd fd(memfd_create("ckv-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus("memory file of a chunk");
  }
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoStatus("mapping of a chunk's memory file");
  absl::Status copied = CopyTensors(chunk, static_cast<std::byte*>(base), stop);
  munmap(base, bytes);  // a file with a writable mapping cannot be sealed
  CKV_RETURN_IF_ERROR(copied);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus("sealing a memory file");
  return fd;
}

int ChunkExports::Insert(ChunkLocator chunk, uint64_t bytes, UniqueFd fd, const ChunkTable& table) {
  std::erase_if(exports_, [&](const Export& kept) {
    if (table.Describe(kept.chunk).ok()) return false;
    bytes_ -= kept.bytes;
    return true;
  });
  while (!exports_.empty() && (bytes_ + bytes > bytes_max_ || exports_.size() >= kExportCountMax)) {
    bytes_ -= exports_.back().bytes;
    exports_.pop_back();
  }
  bytes_ += bytes;
  exports_.push_front({chunk, bytes, std::move(fd)});
  return exports_.front().fd.get();
}

}  // namespace ckv
