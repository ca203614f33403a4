// The actor's records of contexts and of their runs. Only its own files include this one.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/act/actor.h"

namespace ckv {

// A run of chunks that some watched context attends, or that is near.
struct Actor::Run {
  enum class State : uint8_t { kFar, kQueued, kPulling, kNear };
  uint64_t key = 0;
  uint64_t bytes = 0;
  State state = State::kFar;
  uint32_t held = 0;             // contexts that must have it near
  uint64_t asker = 0;            // the context that wants it pulled
  const void* source = nullptr;  // whom it is pulled from, while it is
  bool borrowed = false;         // near by chunks of other runs, or of this process' holder, alone
  std::vector<uint64_t> users;   // ids of contexts
  std::vector<ChunkId> ids;      // keys in the near store, while it is near
  absl::Status last_error;       // the last pull's
  double price_us = 0;
  double saved_us = 0;  // since it came near
  Instant near_since{};
  void BecomeNear(Instant now, bool by_others) {
    state = State::kNear;
    borrowed = by_others;
    near_since = now;
    saved_us = 0;
  }
  // Time saved a byte and microsecond. A pull promised its price within that time.
  double Worth(Instant now) const {
    const double us = static_cast<double>((now - near_since).count()) / 1e3;
    return (price_us + saved_us) / (us + price_us + 1) / static_cast<double>(bytes + 1);
  }
};

struct Actor::Watched {
  struct Use {
    ContextRun run;
    PullRule::UseId use = 0;
    double share = 0;  // the run's part of the context's tokens
    std::optional<std::pair<Primitive, ActReason>> decided;
  };
  uint64_t id = 0;
  ContextPolicy policy = ContextPolicy::kRoute;
  ContextExpectation expect;
  Recompute recompute;
  std::shared_ptr<ContextState> context;
  std::vector<Use> uses;
  bool same_bits = false;  // rows of holders give their bits here, or the caller forced them
  bool opened = false;     // in the rule, once costs are known
  bool known = false;      // costs are
  uint64_t counted = 0;
  CallShape shape;
  double own_count = 0;  // own rows of a call, on average since the last look
  uint64_t own_sum = 0;
  StepCost cost;
  bool near_pays = true;  // as the cost model has it; else its near rows are not used
  double call_us = 0;     // lost by a call that is routed
  Instant measured_at{};  // when its constants were last asked for

  bool recompute_failed = false;  // rows are not made anew again

  bool can_recompute() const { return recompute.make != nullptr; }
};

}  // namespace ckv
