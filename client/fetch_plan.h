// Cuts a fetch into requests whose replies fit a lane's slots, in the order of delivery.

#pragma once

#include <cstdint>

#include "client/requester.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// Where a fetch begins that goes on with an earlier one: a layer of a chunk of its range.
struct FetchFrom {
  uint32_t chunk = 0;
  uint32_t layer = 0;
};

// What one request asks for: whole layers of a chunk, or some tokens of one layer.
struct FetchPiece {
  uint32_t chunk = 0;  // ordinal in the corpus
  FetchEntry entry;    // but for the handle
};

// One call at a time. Not thread-safe.
class FetchPlan {
 public:
  // Of a checked call, whose rows fit slots of `shape`. Borrows the call.
  void Begin(const FetchCall& call, const LaneShape& shape, const FetchFrom& from);

  // The next piece in order of chunk, layer, token; false: there is none.
  bool Next(FetchPiece* piece);
  bool done() const { return at_.chunk == call_->chunk_end; }
  // Next gives the last piece once more.
  void Back() { at_ = before_; }

 private:
  struct Cursor {
    uint32_t chunk = 0, layer = 0, token = 0;
  };
  void SkipEmpty();

  const FetchCall* call_ = nullptr;
  uint32_t tokens_max_ = 0;  // of one piece
  Cursor at_, before_;
};

}  // namespace ckv
