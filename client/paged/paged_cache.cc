// The block lists of the cache. All of them are under one lock; bytes of rows are written without
// it.
//   Reserve  takes free blocks for a sequence, which are not visible yet
//   Commit   adds them to the sequence's table and token count; dropping a reservation frees them
//   Free     returns the blocks of a sequence
// Free blocks are a stack, so that a fresh cache hands out runs of neighbours. A run is one copy.

#include "client/paged/paged_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kDescribedRunCountMax = 8;

uint64_t BlocksOf(uint64_t rows) { return (rows + kCacheBlockTokens - 1) / kCacheBlockTokens; }

// Returns how many blocks from `begin` on are neighbours.
size_t RunLength(std::span<const CacheBlock> table, size_t begin) {
  size_t end = begin + 1;
  while (end < table.size() && table[end] == table[end - 1] + 1) ++end;
  return end - begin;
}

absl::Status CheckOptions(const Geometry& geometry, const PagedCache::Options& options) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  if (options.block_count == 0 || options.block_count > kCacheBlockCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("cache: %d blocks, must be 1 to %d",
                                                      options.block_count, kCacheBlockCountMax));
  }
  const uint32_t layer_end = options.layer_end == 0 ? geometry.layers : options.layer_end;
  if (options.layer_begin >= layer_end || layer_end > geometry.layers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache: layers %d to %d of %d", options.layer_begin, layer_end, geometry.layers));
  }
  return absl::OkStatus();
}

uint32_t LayerCount(const Geometry& geometry, const PagedCache::Options& options) {
  return (options.layer_end == 0 ? geometry.layers : options.layer_end) - options.layer_begin;
}

// 64 rows of an even number of bytes: a multiple of 64, so every block is aligned like the first.
uint64_t LayerBytes(const Geometry& geometry, const PagedCache::Options& options) {
  return uint64_t{options.block_count} * kCacheBlockTokens * geometry.row_bytes();
}

}  // namespace

PagedCache::PagedCache(const Geometry& geometry, const Options& options)
    : geometry_(geometry),
      layer_begin_(options.layer_begin),
      block_count_(options.block_count),
      memory_kind_(options.memory) {
  absl::MutexLock lock(&mu_);
  free_.resize(block_count_);
  // Block 0 is taken first, and the next after it: fresh caches have long runs of neighbours.
  for (uint32_t i = 0; i < block_count_; ++i) free_[i] = block_count_ - 1 - i;
}

PagedCache::~PagedCache() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

absl::StatusOr<std::unique_ptr<PagedCache>> PagedCache::Create(const Geometry& geometry,
                                                               const Options& options) {
  CKV_RETURN_IF_ERROR(CheckOptions(geometry, options));
  if (options.memory != MemoryKind::kHost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache: its own memory is the host's, not %s memory; allocate that and use Over",
        MemoryKindName(options.memory)));
  }
  // Below 2^24 x 2^6 x 2^11 x 2^9: no overflow.
  const uint64_t layer_bytes = LayerBytes(geometry, options);
  const uint32_t layer_count = LayerCount(geometry, options);
  const uint64_t bytes = layer_bytes * layer_count;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cache: no memory for %d layers of %d blocks, %d bytes", layer_count,
                        options.block_count, bytes));
  }
  // Rows are scattered by the block: on 4 KiB pages every row would be a page walk.
  if (bytes >= kHugePageBytes) (void)madvise(memory, bytes, MADV_HUGEPAGE);
  auto cache = std::unique_ptr<PagedCache>(new PagedCache(geometry, options));
  cache->memory_ = {static_cast<std::byte*>(memory), bytes};
  for (uint32_t i = 0; i < layer_count; ++i)
    cache->layers_.push_back(cache->memory_.subspan(i * layer_bytes, layer_bytes));
  return cache;
}

absl::StatusOr<std::unique_ptr<PagedCache>> PagedCache::Over(
    const Geometry& geometry, const Options& options,
    std::span<const std::span<std::byte>> layers) {
  CKV_RETURN_IF_ERROR(CheckOptions(geometry, options));
  if (layers.size() != LayerCount(geometry, options)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cache: %d tensors for %d layers", layers.size(), LayerCount(geometry, options)));
  }
  for (const std::span<std::byte> layer : layers) {
    if (layer.size() != LayerBytes(geometry, options) ||
        reinterpret_cast<uintptr_t>(layer.data()) % 64 != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cache: a tensor of %d bytes at %p, must be %d and 64-byte aligned",
                          layer.size(), layer.data(), LayerBytes(geometry, options)));
    }
  }
  auto cache = std::unique_ptr<PagedCache>(new PagedCache(geometry, options));
  cache->layers_.assign(layers.begin(), layers.end());
  return cache;
}

uint32_t PagedCache::free_block_count() const {
  absl::MutexLock lock(&mu_);
  return static_cast<uint32_t>(free_.size());
}

CacheSequenceId PagedCache::Begin() {
  absl::MutexLock lock(&mu_);
  sequences_[++last_id_];
  return {last_id_};
}

absl::StatusOr<const PagedCache::Sequence*> PagedCache::Find(CacheSequenceId sequence) const {
  const auto it = sequences_.find(sequence.value);
  if (it == sequences_.end())
    return absl::NotFoundError(absl::StrFormat("cache: no sequence %d", sequence.value));
  return &it->second;
}

absl::Status PagedCache::Free(CacheSequenceId sequence) {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const Sequence* found, Find(sequence));
  if (found->reserved) {
    return absl::FailedPreconditionError(
        absl::StrFormat("cache: sequence %d is being extended", sequence.value));
  }
  free_.insert(free_.end(), found->table.rbegin(), found->table.rend());
  sequences_.erase(sequence.value);
  return absl::OkStatus();
}

absl::StatusOr<CacheReservation> PagedCache::Reserve(CacheSequenceId sequence,
                                                     uint64_t token_count) {
  if (token_count == 0) return absl::InvalidArgumentError("cache: a reservation of no tokens");
  absl::MutexLock lock(&mu_);
  CKV_RETURN_IF_ERROR(Find(sequence).status());
  Sequence& found = sequences_[sequence.value];
  if (found.reserved) {
    return absl::FailedPreconditionError(
        absl::StrFormat("cache: sequence %d is being extended", sequence.value));
  }
  CacheReservation reservation;
  reservation.row_begin_ = static_cast<uint32_t>(found.token_count % kCacheBlockTokens);
  const uint32_t old_blocks = reservation.row_begin_ == 0 ? 0 : 1;
  const uint64_t rows_max = uint64_t{kCacheBlockTokens} * block_count_;
  const uint64_t blocks =
      BlocksOf(reservation.row_begin_ + std::min(token_count, rows_max + 1)) - old_blocks;
  if (blocks > free_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cache: %d tokens need %d more blocks of %d rows, %d of %d are free",
                        token_count, blocks, kCacheBlockTokens, free_.size(), block_count_));
  }
  if (old_blocks != 0) reservation.table_.push_back(found.table.back());
  reservation.table_.insert(reservation.table_.end(), free_.rbegin(),
                            free_.rbegin() + static_cast<std::ptrdiff_t>(blocks));
  free_.erase(free_.end() - static_cast<std::ptrdiff_t>(blocks), free_.end());
  found.reserved = true;
  reservation.cache_ = this;
  reservation.sequence_ = sequence;
  reservation.token_count_ = token_count;
  reservation.new_block_begin_ = old_blocks;
  return reservation;
}

void PagedCache::End(const CacheReservation& reservation, bool commit) {
  absl::MutexLock lock(&mu_);
  Sequence& sequence = sequences_[reservation.sequence_.value];
  const auto blocks = reservation.table().subspan(reservation.new_block_begin_);
  sequence.reserved = false;
  if (commit) {
    sequence.table.insert(sequence.table.end(), blocks.begin(), blocks.end());
    sequence.token_count += reservation.token_count_;
  } else {
    // Restores their previous order in the list.
    free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
  }
}

absl::StatusOr<uint64_t> PagedCache::token_count(CacheSequenceId sequence) const {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const Sequence* found, Find(sequence));
  return found->token_count;
}

absl::Status PagedCache::Table(CacheSequenceId sequence, std::vector<CacheBlock>& table) const {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const Sequence* found, Find(sequence));
  table = found->table;
  return absl::OkStatus();
}

RowView PagedCache::layer_rows(uint32_t layer_index) const {
  return {layer(layer_index).data(), block_count_ * kCacheBlockTokens, geometry_.row_bytes(),
          memory_kind_};
}

absl::Status PagedCache::Runs(CacheSequenceId sequence, uint32_t layer_index,
                              std::vector<RowView>& runs) const {
  absl::MutexLock lock(&mu_);
  CKV_ASSIGN_OR_RETURN(const Sequence* found, Find(sequence));
  runs.clear();
  const uint32_t row_bytes = geometry_.row_bytes();
  uint64_t left = found->token_count;
  for (size_t i = 0; i < found->table.size();) {
    const size_t blocks = RunLength(found->table, i);
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(left, blocks * kCacheBlockTokens));
    const size_t row = size_t{found->table[i]} * kCacheBlockTokens;
    runs.push_back({layer(layer_index).data() + row * row_bytes, rows, row_bytes, memory_kind_});
    left -= rows;
    i += blocks;
  }
  return absl::OkStatus();
}

CacheReservation::CacheReservation(CacheReservation&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      sequence_(other.sequence_),
      token_count_(other.token_count_),
      row_begin_(other.row_begin_),
      new_block_begin_(other.new_block_begin_),
      table_(std::move(other.table_)) {}

CacheReservation::~CacheReservation() {
  if (cache_ != nullptr) cache_->End(*this, /*commit=*/false);
}

std::span<std::byte> CacheReservation::layer(uint32_t layer) const {
  CKV_CHECK(cache_ != nullptr && layer >= cache_->layer_begin() && layer < cache_->layer_end());
  return cache_->layers_[layer - cache_->layer_begin_];
}

PagedPlace CacheReservation::From(uint32_t layer_index, uint64_t token_begin) const {
  return {.layer = layer(layer_index),
          .table = table_,
          .row_begin = row_begin_ + token_begin,
          .block_rows = kCacheBlockTokens,
          .memory = cache_->memory()};
}

ScatterList CacheReservation::Spans(uint32_t layer_index, uint64_t token_begin,
                                    uint64_t token_count) const {
  CKV_CHECK(token_count > 0 && token_begin <= token_count_ &&
            token_count <= token_count_ - token_begin);
  if (cache_->memory() == MemoryKind::kDevice) return {};
  const uint64_t row_bytes = cache_->geometry().row_bytes();
  const uint64_t end = row_begin_ + token_begin + token_count;
  const std::span table = std::span(table_).first((end - 1) / kCacheBlockTokens + 1);
  ScatterList spans;
  for (uint64_t row = row_begin_ + token_begin; row < end;) {
    const size_t block = row / kCacheBlockTokens;
    const uint64_t run_end = std::min((block + RunLength(table, block)) * kCacheBlockTokens, end);
    const uint64_t slot = uint64_t{table_[block]} * kCacheBlockTokens + row % kCacheBlockTokens;
    if (!spans.Add(layer(layer_index).subspan(slot * row_bytes, (run_end - row) * row_bytes)))
      return {};
    row = run_end;
  }
  return spans;
}

void CacheReservation::Commit() && {
  CKV_CHECK(cache_ != nullptr);
  std::exchange(cache_, nullptr)->End(*this, /*commit=*/true);
}

std::string CacheReservation::DescribeBlocks() const {
  std::string text = "blocks ";
  size_t runs = 0, i = 0;
  for (; i < table_.size() && runs < kDescribedRunCountMax; ++runs) {
    const size_t length = RunLength(table_, i);
    if (runs > 0) text += ", ";
    text += absl::StrFormat("%d", table_[i]);
    if (length > 1) text += absl::StrFormat(" to %d", table_[i + length - 1]);
    i += length;
  }
  if (i < table_.size()) text += absl::StrFormat(" and %d more", table_.size() - i);
  return text;
}

}  // namespace ckv
