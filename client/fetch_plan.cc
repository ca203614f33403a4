#include "client/fetch_plan.h"

#include <algorithm>

#include "proto/stripe.h"

namespace ckv {

void FetchPlan::Begin(const FetchCall& call, const LaneShape& shape, const FetchFrom& from) {
  call_ = &call;
  const auto rows_max = static_cast<uint32_t>(FetchBodyBytesMax(shape.reply_bytes_max) /
                                              call.corpus->geometry.row_bytes());
  // Whole stripes, where they fit: their checksums are the store's.
  tokens_max_ = rows_max < kStripeTokens ? rows_max : rows_max - rows_max % kStripeTokens;
  at_ = before_ = {from.chunk, from.layer, 0};
  SkipEmpty();
}

void FetchPlan::SkipEmpty() {
  while (!done() && call_->corpus->chunks[at_.chunk].token_count == 0)
    at_ = {at_.chunk + 1, call_->layer_begin, 0};
}

bool FetchPlan::Next(FetchPiece* piece) {
  before_ = at_;
  if (done()) return false;
  const uint32_t token_count = call_->corpus->chunks[at_.chunk].token_count;
  *piece = {.chunk = at_.chunk, .entry = {}};
  FetchEntry& entry = piece->entry;
  entry.layer_begin = at_.layer;
  entry.token_begin = at_.token;
  entry.token_count = std::min(tokens_max_, token_count - at_.token);
  entry.layer_count = 1;
  if (entry.token_count == token_count)
    entry.layer_count = std::min(tokens_max_ / token_count, call_->layer_end - at_.layer);
  at_.token += entry.token_count;
  if (at_.token == token_count) {
    at_.token = 0;
    at_.layer += entry.layer_count;
  }
  if (at_.layer == call_->layer_end) {
    at_ = {at_.chunk + 1, call_->layer_begin, 0};
    SkipEmpty();
  }
  return true;
}

}  // namespace ckv
