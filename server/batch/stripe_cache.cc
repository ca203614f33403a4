// Stripes of layers on disk, the oldest evicted first. Find returns a Hold of a layer if the wanted
// stripes are there. Fill, in order: MakePlan, under the lock, evicts for room and lists the
// missing stripes; without it, evicted pages are freed and missing ones read; Publish adds them
// under the lock, or GiveUp returns them after an error. A Hold keeps its layer's stripes from
// eviction. Only one thread fills.

#include "server/batch/stripe_cache.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"

namespace ckv {
namespace {

uint64_t BytesOf(const LayerShape& shape, uint32_t stripe) {
  return shape.PagesOf(stripe).count() * SparseLayer::kPageBytes;
}

}  // namespace

StripeCache::Layer::Layer(const Key& name, SparseLayer rows)
    : key(name), memory(std::move(rows)), stripes(StripeCount(memory.shape().token_count)) {}

StripeCache::Hold::Hold(Hold&& other) noexcept
    : cache_(other.cache_),
      layer_(std::exchange(other.layer_, nullptr)),
      stripe_count_(other.stripe_count_) {}

StripeCache::Hold& StripeCache::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  Release();
  cache_ = other.cache_;
  layer_ = std::exchange(other.layer_, nullptr);
  stripe_count_ = other.stripe_count_;
  return *this;
}

const std::byte* StripeCache::Hold::rows() const { return layer_->memory.rows(); }

uint32_t StripeCache::Hold::token_count() const { return layer_->memory.shape().token_count; }

void StripeCache::Hold::Release() {
  if (layer_ == nullptr) return;
  absl::MutexLock lock(&cache_->mu_);
  --layer_->hold_count;
  layer_ = nullptr;
}

StripeCache::~StripeCache() {
  absl::MutexLock lock(&mu_);
  for (const auto& [key, layer] : layers_) CKV_CHECK(layer->hold_count == 0);
}

StripeCache::Layer* StripeCache::LayerOf(const Key& key) const {
  const auto found = layers_.find(key);
  return found == layers_.end() ? nullptr : found->second.get();
}

bool StripeCache::Use(Stripe& stripe) {
  if (stripe.used == uses_) return false;
  stripe.used = uses_;
  order_.splice(order_.begin(), order_, stripe.place);
  return true;
}

StripeCache::Hold StripeCache::Find(ChunkLocator chunk, uint32_t layer_number,
                                    std::span<const int32_t> indices) {
  absl::MutexLock lock(&mu_);
  Layer* const layer = LayerOf({chunk.slot, chunk.generation, layer_number});
  if (layer == nullptr) return {};
  ++uses_;
  const uint32_t token_count = layer->memory.shape().token_count;
  uint32_t stripe_count = 0;
  for (const int32_t index : indices) {               // by value: read once, judged, then used
    const auto token = static_cast<uint32_t>(index);  // negative ones are beyond any chunk
    if (token >= token_count) continue;
    Stripe& stripe = layer->stripes[token / kStripeTokens];
    if (!stripe.here) return {};
    if (Use(stripe)) ++stripe_count;
  }
  ++layer->hold_count;
  return Hold(this, layer, stripe_count);
}

size_t StripeCache::Missing(ChunkLocator chunk, uint32_t layer_number,
                            std::span<const uint32_t> stripes) const {
  absl::MutexLock lock(&mu_);
  const Layer* const layer = LayerOf({chunk.slot, chunk.generation, layer_number});
  if (layer == nullptr) return stripes.size();
  return static_cast<size_t>(std::count_if(stripes.begin(), stripes.end(), [&](uint32_t stripe) {
    return !layer->stripes[stripe].here;
  }));
}

absl::StatusOr<StripeCache::Hold> StripeCache::Fill(ChunkLocator chunk, const ChunkRows& rows,
                                                    uint32_t layer_number,
                                                    std::span<const uint32_t> stripes) {
  CKV_CHECK(!stripes.empty());
  const Key key = {chunk.slot, chunk.generation, layer_number};
  const LayerShape shape = {rows.info().token_count(), rows.geometry().row_bytes()};
  Plan plan = MakePlan(key, shape, stripes);
  plan.garbage.Free();  // before anything is read: a page of it may be read into next
  if (!plan.fits) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes of stripes and those in use do not fit together, %d at most",
                        plan.bytes, bytes_max_));
  }
  // Other threads find a new layer once its stripes have been read.
  std::unique_ptr<Layer> made;
  if (plan.layer == nullptr) {
    absl::StatusOr<SparseLayer> memory = SparseLayer::Map(shape);
    if (!memory.ok()) {
      GiveUp(plan);
      return memory.status();
    }
    made = std::make_unique<Layer>(key, *std::move(memory));
  }
  SparseLayer& memory = made != nullptr ? made->memory : plan.layer->memory;
  if (absl::Status read = memory.Read(rows, layer_number, plan.missing); !read.ok()) {
    GiveUp(plan);
    return read;
  }
  return Publish(plan, std::move(made), static_cast<uint32_t>(stripes.size()));
}

StripeCache::Plan StripeCache::MakePlan(const Key& key, const LayerShape& shape,
                                        std::span<const uint32_t> stripes) {
  Plan plan;
  absl::MutexLock lock(&mu_);
  ++uses_;
  Layer* const layer = LayerOf(key);
  for (const uint32_t stripe : stripes) {
    if (layer != nullptr && layer->stripes[stripe].here) {
      Use(layer->stripes[stripe]);
    } else {
      plan.missing.push_back(stripe);
      plan.bytes += BytesOf(shape, stripe);
    }
  }
  plan.fits = MakeRoom(plan.bytes, /*new_layer=*/layer == nullptr, plan.garbage);
  if (!plan.fits) return plan;
  bytes_ += plan.bytes;
  plan.layer = LayerOf(key);  // its last stripes may have been evicted just now
  return plan;
}

bool StripeCache::MakeRoom(uint64_t bytes, bool new_layer, Garbage& garbage) {
  if (bytes > bytes_max_) return false;
  auto at = order_.end();
  while (bytes > bytes_max_ - bytes_ || (new_layer && layers_.size() >= kLayerCountMax)) {
    // The oldest stripe that has no reader and is not of this use.
    do {
      if (at == order_.begin()) return false;
      --at;
    } while (at->layer->hold_count != 0 || at->layer->stripes[at->stripe].used == uses_);
    at = Evict(at, garbage);
  }
  return true;
}

std::list<StripeCache::Name>::iterator StripeCache::Evict(std::list<Name>::iterator at,
                                                          Garbage& garbage) {
  Layer& layer = *at->layer;
  const uint32_t stripe = at->stripe;
  layer.stripes[stripe] = {};
  bytes_ -= BytesOf(layer.memory.shape(), stripe);
  if (--layer.here_count > 0) {
    garbage.pages.emplace_back(&layer.memory, PagesAlone(layer, stripe));
  } else {
    auto whole = layers_.extract(layer.key);
    garbage.layers.push_back(std::move(whole.mapped()));
  }
  return order_.erase(at);
}

StripeCache::Hold StripeCache::Publish(Plan& plan, std::unique_ptr<Layer> made,
                                       uint32_t stripe_count) {
  absl::MutexLock lock(&mu_);
  if (made != nullptr) {
    plan.layer = made.get();
    layers_[made->key] = std::move(made);
  }
  Layer& layer = *plan.layer;
  for (const uint32_t stripe : plan.missing) {
    order_.push_front({&layer, stripe});
    layer.stripes[stripe] = {.here = true, .used = uses_, .place = order_.begin()};
  }
  layer.here_count += static_cast<uint32_t>(plan.missing.size());
  ++layer.hold_count;
  return Hold(this, &layer, stripe_count);
}

// Frees the pages of the missing stripes. The owner of a new layer frees it.
void StripeCache::GiveUp(Plan& plan) {
  {
    absl::MutexLock lock(&mu_);
    bytes_ -= plan.bytes;
    if (plan.layer == nullptr) return;
    for (const uint32_t stripe : plan.missing)
      plan.garbage.pages.emplace_back(&plan.layer->memory, PagesAlone(*plan.layer, stripe));
  }
  plan.garbage.Free();
}

PageRange StripeCache::PagesAlone(const Layer& layer, uint32_t stripe) {
  const LayerShape& shape = layer.memory.shape();
  PageRange pages = shape.PagesOf(stripe);
  for (uint32_t before = stripe; before-- > 0;) {
    const uint64_t end = shape.PagesOf(before).end;
    if (end <= pages.begin) break;
    if (!layer.stripes[before].here) continue;
    pages.begin = end;
    break;
  }
  for (uint32_t after = stripe + 1; after < layer.stripes.size(); ++after) {
    const uint64_t begin = shape.PagesOf(after).begin;
    if (begin >= pages.end) break;
    if (!layer.stripes[after].here) continue;
    pages.end = begin;
    break;
  }
  return pages;
}

// Pages first: they may be of a layer whose last stripe was evicted later.
void StripeCache::Garbage::Free() {
  for (const auto& [memory, range] : pages) memory->Free(range);
  pages.clear();
  layers.clear();
}

uint64_t StripeCache::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace ckv
