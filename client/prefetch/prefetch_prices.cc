#include "client/prefetch/prefetch_prices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ckv {
namespace {

// Returns what the time of a prefill depends on: the model and its revision.
std::string ModelOf(const Geometry& geometry) {
  return absl::StrCat(geometry.model, "@", geometry.revision);
}

}  // namespace

double LostUs(const WatchedContext& watched) {
  const auto tokens = static_cast<double>(watched.context->token_count());
  const double selected = watched.shape.selected;
  const double attended = std::max(1.0, selected > 0 ? std::min(selected, tokens) : tokens);
  const double own_us = watched.cost.cached_us * watched.own_count / attended;
  const double measured_us =
      watched.context->usage().routed_us() * watched.context->geometry().layers;
  const double routed_us = measured_us > 0 ? measured_us : watched.cost.route_us;
  return std::max(own_us, routed_us) - (own_us + watched.cost.cached_us);
}

std::pair<double, Primitive> PrefetchPrices::Of(const WatchedContext& watched) const {
  const std::pair<double, Primitive> fetch = {watched.cost.prefetch_us, Primitive::kFetch};
  if (!watched.can_recompute() || watched.recompute_failed) return fetch;
  const Geometry& geometry = watched.context->geometry();
  double token_us = watched.recompute.us_per_token;
  if (!(token_us > 0)) token_us = watched.cost.prefill_token_us.value_or(0);
  if (const auto known = recompute_us_.find(ModelOf(geometry)); known != recompute_us_.end())
    token_us = known->second;
  const double us = token_us * static_cast<double>(watched.context->token_count());
  return token_us > 0 && us < fetch.first ? std::pair(us, Primitive::kLocal) : fetch;
}

void PrefetchPrices::TakeRecomputed(const Geometry& geometry, double us_per_token) {
  const auto [known, is_new] = recompute_us_.emplace(ModelOf(geometry), us_per_token);
  if (!is_new) known->second = (known->second + us_per_token) / 2;
}

}  // namespace ckv
