#include "store/memory/shadow_table.h"

#include <algorithm>
#include <span>
#include <utility>

#include "proto/base/stripe.h"

namespace ckv {
namespace {

constexpr uint64_t RoundUp64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Damage in memory is found now or never: a shadow has no checksums.
bool Whole(const Chunk& chunk, uint32_t tensor) {
  const std::span<const std::byte> rows = chunk.tensor(tensor);
  const uint64_t stripe_bytes = uint64_t{kStripeTokens} * chunk.layout().row_bytes(tensor);
  uint64_t at = 0;
  for (const uint64_t checksum : chunk.stripe_checksums(tensor)) {
    const uint64_t bytes = std::min(stripe_bytes, rows.size() - at);
    if (StripeChecksum(rows.subspan(at, bytes)) != checksum) return false;
    at += bytes;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Shadow> Shadow::Make(Chunk chunk, const ShadowCodec& codec) {
  const Geometry& geometry = chunk.geometry();
  const uint32_t row_bytes = geometry.row_bytes();
  const uint32_t packed_bytes = codec.PackedRowBytes(geometry);
  const uint32_t token_count = chunk.info().token_count();
  if (packed_bytes == 0 || packed_bytes >= row_bytes || token_count == 0) return nullptr;
  const uint64_t stride_bytes = RoundUp64(uint64_t{token_count} * packed_bytes);
  const ChunkLayout layout = chunk.layout();
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    if (!Whole(chunk, layer)) return nullptr;
  }
  Extent extent = std::move(chunk).TakeExtent();
  std::byte* const memory = extent.bytes().data();
  // A row's packed form ends before the next row begins, and its layer before the next layer.
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    const std::byte* row = memory + layout.begin(layer);
    std::byte* packed = memory + layer * stride_bytes;
    for (uint32_t t = 0; t < token_count; ++t, row += row_bytes, packed += packed_bytes) {
      if (!codec.Pack(geometry, row, packed)) return nullptr;
    }
  }
  extent.Shrink(geometry.layers * stride_bytes);
  return std::shared_ptr<const Shadow>(
      new Shadow(std::move(extent), token_count, packed_bytes, stride_bytes));
}

void ShadowTable::Add(ChunkLocator chunk, std::shared_ptr<const Shadow> shadow) {
  if (shadow->bytes() > bytes_max_) return;
  absl::MutexLock lock(&mu_);
  if (const auto old = entries_.find(chunk.slot); old != entries_.end()) Erase(old);
  while (bytes_ + shadow->bytes() > bytes_max_ && EraseOldest()) {
  }
  bytes_ += shadow->bytes();
  const uint64_t serial = next_serial_++;
  ages_.push_back({chunk.slot, serial});
  entries_[chunk.slot] = {chunk.generation, serial, std::move(shadow)};
}

std::shared_ptr<const Shadow> ShadowTable::Find(ChunkLocator chunk) const {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(chunk.slot);
  if (found == entries_.end() || found->second.generation != chunk.generation) return nullptr;
  return found->second.shadow;
}

void ShadowTable::Remove(ChunkLocator chunk) {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(chunk.slot);
  if (found != entries_.end() && found->second.generation == chunk.generation) Erase(found);
}

bool ShadowTable::RemoveOldest() {
  absl::MutexLock lock(&mu_);
  return EraseOldest();
}

void ShadowTable::Erase(Entries::iterator entry) {
  bytes_ -= entry->second.shadow->bytes();
  entries_.erase(entry);
  // Ages of what was removed in the middle: as many as there are shadows at most.
  if (ages_.size() > 2 * entries_.size() + 16) {
    std::erase_if(ages_, [this](const Age& age) {
      mu_.AssertHeld();
      const auto found = entries_.find(age.slot);
      return found == entries_.end() || found->second.serial != age.serial;
    });
  }
}

bool ShadowTable::EraseOldest() {
  while (!ages_.empty()) {
    const Age age = ages_.front();
    ages_.pop_front();
    const auto found = entries_.find(age.slot);
    if (found == entries_.end() || found->second.serial != age.serial) continue;
    Erase(found);
    return true;
  }
  return false;
}

uint64_t ShadowTable::count() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace ckv
