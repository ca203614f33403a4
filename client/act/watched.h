// The actor's records of contexts and their chunk ranges. Only the actor's own files include this
// one.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/act/actor.h"

namespace ckv {

// A chunk range that some watched context attends, or that is cached locally.
struct Actor::Run {
  enum class State : uint8_t { kFar, kQueued, kPulling, kNear };
  uint64_t key = 0;
  uint64_t bytes = 0;
  State state = State::kFar;
  uint32_t held = 0;             // contexts that need it to stay cached
  uint64_t asker = 0;            // the context that requested the prefetch
  const void* source = nullptr;  // the holder to prefetch from
  bool borrowed = false;         // cached only through chunks of other ranges, or of this process'
                                 // holder
  std::vector<uint64_t> users;   // ids of contexts
  std::vector<ChunkId> ids;      // keys in the local row cache, while it is cached
  absl::Status last_error;       // the last prefetch's
  double price_us = 0;
  double saved_us = 0;  // since it was cached
  Instant near_since{};
  void BecomeNear(Instant now, bool by_others) {
    state = State::kNear;
    borrowed = by_others;
    near_since = now;
    saved_us = 0;
  }
  // Time saved per byte and microsecond since it was cached. Both times start at the price: a
  // prefetch promises to save that much in that time.
  double Worth(Instant now) const {
    const double us = static_cast<double>((now - near_since).count()) / 1e3;
    return (price_us + saved_us) / (us + price_us + 1) / static_cast<double>(bytes + 1);
  }
};

struct Actor::Watched {
  struct Use {
    ContextRun run;
    PullRule::UseId use = 0;
    double share = 0;  // the range's part of the context's tokens
    std::optional<std::pair<Primitive, ActReason>> decided;
  };
  uint64_t id = 0;
  ContextPolicy policy = ContextPolicy::kRoute;
  ContextExpectation expect;
  Recompute recompute;
  std::shared_ptr<ContextState> context;
  std::vector<Use> uses;
  bool same_bits = false;  // rows give the holders' bits here, or the policy is `near`
  bool opened = false;     // the rule has its uses; only after `known`
  bool known = false;      // costs are known
  uint64_t counted = 0;
  CallShape shape;
  double own_count = 0;  // own rows per call, on average since the last update
  uint64_t own_sum = 0;
  StepCost cost;
  bool near_pays = true;  // according to the cost model; if false, its cached rows are not used
  double call_us = 0;     // time lost by a call that is routed
  Instant measured_at{};  // when measuring its constants last began

  bool recompute_failed = false;  // rows are not recomputed again

  bool can_recompute() const { return recompute.make != nullptr; }
};

}  // namespace ckv
