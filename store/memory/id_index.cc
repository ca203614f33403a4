#include "store/memory/id_index.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint32_t kSizeAtStart = 1024;

}  // namespace

IdIndex::IdIndex() {
  arrays_.push_back(std::make_unique<Array>(kSizeAtStart));
  array_.store(arrays_.back().get(), std::memory_order_release);
}

void IdIndex::Put(Array& array, uint64_t hash, uint32_t slot) {
  CKV_CHECK(slot < kSlotEnd);
  uint32_t i = static_cast<uint32_t>(hash) & array.mask;
  while (array.entries[i].load(std::memory_order_relaxed) != kEmpty) i = (i + 1) & array.mask;
  array.entries[i].store(EntryOf(hash, slot), std::memory_order_release);
}

void IdIndex::Erase(uint64_t hash, uint32_t slot) {
  Array& array = *array_.load(std::memory_order_relaxed);
  const uint32_t entry = EntryOf(hash, slot);
  uint32_t i = static_cast<uint32_t>(hash) & array.mask;
  while (array.entries[i].load(std::memory_order_relaxed) != entry) {
    CKV_CHECK(array.entries[i].load(std::memory_order_relaxed) != kEmpty);
    i = (i + 1) & array.mask;
  }
  --live_count_;
  const uint32_t next = array.entries[(i + 1) & array.mask].load(std::memory_order_relaxed);
  if (next != kEmpty) {
    array.entries[i].store(kErased, std::memory_order_release);
    return;
  }
  // Nothing is looked for beyond the end of a run, so what was erased before it is empty as well.
  while (true) {
    array.entries[i].store(kEmpty, std::memory_order_release);
    --used_count_;
    i = (i - 1) & array.mask;
    if (!Erased(array.entries[i].load(std::memory_order_relaxed))) return;
  }
}

// A reader that is still in an array that was left earlier sees the version change and starts over.
IdIndex::Array& IdIndex::TakeArray() {
  const Array* const old = array_.load(std::memory_order_relaxed);
  const uint32_t size = old->mask + 1;
  const bool sweep = live_count_ < size / 4;
  for (const std::unique_ptr<Array>& array : arrays_) {
    if (!sweep || array.get() == old || array->mask != old->mask) continue;
    for (uint32_t i = 0; i < size; ++i) array->entries[i].store(kEmpty, std::memory_order_relaxed);
    return *array;
  }
  arrays_.push_back(std::make_unique<Array>(sweep ? size : 2 * size));
  return *arrays_.back();
}

void IdIndex::Use(Array& array) {
  used_count_ = live_count_;
  array_.store(&array, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace ckv
