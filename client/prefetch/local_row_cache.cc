// The memory of the local row cache. A chunk's states:
//   filling    Begin reserves its bytes and maps memory. Adopt reserves bytes only
//   published  Commit or Adopt adds it to chunks_, with a hold. Hold and Release count holds
//   released   the last Release removes it. Its bytes are free once no call has its rows
// mu_ guards chunks_. Bytes are counted by atomics in LocalUsage, which rows share and so keep
// alive.

#include "client/prefetch/local_row_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/chunk_layout.h"

namespace ckv {
namespace {

constexpr uint64_t kAlignBytes = uint64_t{2} << 20;  // a huge page

}  // namespace

// The limit and use of a cache's memory. Outlives the cache, because rows may.
struct LocalUsage {
  uint64_t bytes_max = 0;
  std::atomic<uint64_t> used{0};
  std::atomic<uint32_t> chunk_count{0};  // includes chunks being filled, and evicted ones in use
};

// One mapping per chunk, so that its memory returns to the system at once.
class CachedRows final : public LocalRows {
 public:
  // Takes ownership of the space that was reserved for it.
  CachedRows(const Geometry& geometry, uint32_t token_count, std::shared_ptr<LocalUsage> usage)
      : geometry_(geometry),
        layout_(geometry, token_count),
        bytes_(layout_.total_bytes()),
        usage_(std::move(usage)) {}
  ~CachedRows() override {
    if (mapped_ != nullptr) munmap(mapped_, bytes_ + kAlignBytes);
    usage_->used.fetch_sub(bytes_, std::memory_order_relaxed);
    usage_->chunk_count.fetch_sub(1, std::memory_order_relaxed);
  }
  CachedRows(const CachedRows&) = delete;
  CachedRows& operator=(const CachedRows&) = delete;

  bool Map() {
    // Memory is used from a huge page on. The rest of the mapping is never touched.
    void* const mapped = mmap(nullptr, bytes_ + kAlignBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    mapped_ = mapped;
    const auto begin = reinterpret_cast<uintptr_t>(mapped);
    const uintptr_t skipped = (kAlignBytes - begin % kAlignBytes) % kAlignBytes;
    data_ = static_cast<std::byte*>(mapped) + skipped;
    (void)madvise(data_, bytes_, MADV_HUGEPAGE);  // without them it is only slower
    return true;
  }
  std::span<std::byte> writable(uint32_t t) const {
    CKV_CHECK(t < layout_.tensor_count());
    return {data_ + layout_.begin(t), layout_.bytes(t)};
  }
  std::span<const std::byte> tensor(uint32_t t) const override { return writable(t); }
  const Geometry& geometry() const { return geometry_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const Geometry geometry_;
  const ChunkLayout layout_;
  const uint64_t bytes_;
  const std::shared_ptr<LocalUsage> usage_;
  void* mapped_ = nullptr;
  std::byte* data_ = nullptr;
};

namespace {

// Rows that another object owns, and their share of the space.
class AdoptedRows final : public LocalRows {
 public:
  AdoptedRows(std::shared_ptr<const LocalRows> rows, uint64_t bytes,
              std::shared_ptr<LocalUsage> usage)
      : rows_(std::move(rows)), bytes_(bytes), usage_(std::move(usage)) {}
  ~AdoptedRows() override {
    usage_->used.fetch_sub(bytes_, std::memory_order_relaxed);
    usage_->chunk_count.fetch_sub(1, std::memory_order_relaxed);
  }
  std::span<const std::byte> tensor(uint32_t t) const override { return rows_->tensor(t); }
  bool current() const override { return rows_->current(); }

 private:
  const std::shared_ptr<const LocalRows> rows_;
  const uint64_t bytes_;
  const std::shared_ptr<LocalUsage> usage_;
};

}  // namespace

std::span<std::byte> LocalRowFill::tensor(uint32_t t) const { return memory_->writable(t); }

uint64_t LocalRowFill::bytes() const { return memory_->bytes(); }

LocalRowCache::LocalRowCache(uint64_t capacity_bytes) : usage_(std::make_shared<LocalUsage>()) {
  usage_->bytes_max = capacity_bytes;
}

LocalRowCache::~LocalRowCache() = default;

uint64_t LocalRowCache::capacity_bytes() const { return usage_->bytes_max; }

uint64_t LocalRowCache::used_bytes() const { return usage_->used.load(std::memory_order_relaxed); }

uint64_t LocalRowCache::BytesOf(const Geometry& geometry, uint32_t token_count) {
  return ChunkLayout(geometry, token_count).total_bytes();
}

std::shared_ptr<const LocalRows> LocalRowCache::Find(const ChunkId& id,
                                                     const Geometry& geometry) const {
  absl::MutexLock lock(&mu_);
  const auto known = chunks_.find(id);
  if (known == chunks_.end() || known->second.geometry != geometry) return nullptr;
  return known->second.rows;
}

// Reserves space for a chunk. The object that has the chunk's rows releases it.
absl::Status LocalRowCache::Take(uint64_t bytes) {
  uint64_t used = usage_->used.load(std::memory_order_relaxed);
  do {
    if (bytes > usage_->bytes_max || used > usage_->bytes_max - bytes) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "local row cache: a chunk of %d bytes does not fit: %d of %d bytes are in use", bytes,
          used, usage_->bytes_max));
    }
  } while (!usage_->used.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (usage_->chunk_count.fetch_add(1, std::memory_order_relaxed) < kChunkCountMax)
    return absl::OkStatus();
  usage_->used.fetch_sub(bytes, std::memory_order_relaxed);
  usage_->chunk_count.fetch_sub(1, std::memory_order_relaxed);
  return absl::ResourceExhaustedError(
      absl::StrFormat("local row cache: %d chunks, the limit: use larger chunks", kChunkCountMax));
}

absl::StatusOr<LocalRowFill> LocalRowCache::Begin(const ChunkId& id, const Geometry& geometry,
                                                  uint32_t token_count) {
  const uint64_t bytes = BytesOf(geometry, token_count);
  CKV_RETURN_IF_ERROR(Take(bytes));
  auto memory = std::make_shared<CachedRows>(geometry, token_count, usage_);
  if (bytes > 0 && !memory->Map()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "local row cache: the system has no memory for a chunk of %d bytes", bytes));
  }
  return LocalRowFill(id, std::move(memory));
}

void LocalRowCache::Commit(LocalRowFill fill) {
  absl::MutexLock lock(&mu_);
  Chunk& chunk = chunks_[fill.id()];
  ++chunk.holds;
  if (chunk.rows != nullptr) return;
  std::shared_ptr<CachedRows> memory = std::move(fill).TakeMemory();
  chunk.geometry = memory->geometry();
  chunk.bytes = memory->bytes();
  chunk.rows = std::move(memory);
}

absl::Status LocalRowCache::Adopt(const ChunkId& id, const Geometry& geometry,
                                  std::shared_ptr<const LocalRows> rows, uint64_t bytes) {
  CKV_RETURN_IF_ERROR(Take(bytes));
  auto adopted = std::make_shared<AdoptedRows>(std::move(rows), bytes, usage_);
  absl::MutexLock lock(&mu_);
  Chunk& chunk = chunks_[id];
  ++chunk.holds;
  if (chunk.rows == nullptr) chunk = {std::move(adopted), geometry, bytes, chunk.holds};
  return absl::OkStatus();
}

uint64_t LocalRowCache::BytesHeldOnce(std::span<const ChunkId> ids) const {
  uint64_t bytes = 0;
  absl::MutexLock lock(&mu_);
  for (const ChunkId& id : ids) {
    const auto known = chunks_.find(id);
    if (known != chunks_.end() && known->second.holds == 1) bytes += known->second.bytes;
  }
  return bytes;
}

bool LocalRowCache::Hold(const ChunkId& id, const Geometry& geometry) {
  absl::MutexLock lock(&mu_);
  const auto known = chunks_.find(id);
  if (known == chunks_.end() || known->second.geometry != geometry) return false;
  ++known->second.holds;
  return true;
}

void LocalRowCache::Release(const ChunkId& id) {
  std::shared_ptr<const LocalRows> gone;  // freed after the lock
  absl::MutexLock lock(&mu_);
  const auto known = chunks_.find(id);
  if (known == chunks_.end() || --known->second.holds > 0) return;
  gone = std::move(known->second.rows);
  chunks_.erase(known);
}

std::vector<ChunkId> LocalRowCache::ids() const {
  std::vector<ChunkId> ids;
  {
    absl::MutexLock lock(&mu_);
    ids.reserve(chunks_.size());
    for (const auto& [id, chunk] : chunks_) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

uint32_t LocalRowCache::chunk_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<uint32_t>(chunks_.size());
}

}  // namespace ckv
