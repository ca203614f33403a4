// How a requester reaches its holders: options for it and a view of each holder.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/decide/profile.h"
#include "client/holders/control.h"
#include "client/learn/ratio_histogram.h"
#include "transport/fabric.h"

namespace ckv {

// The action if both sides have verbs, no verbs lane comes up, and tcp is the next choice.
enum class RdmaFallback : uint8_t {
  kRefuse,  // fail: the call is Unavailable
  // Use a lane on tcp, which is logged, counted and shown.
  kTcp,
};

// A fabric to a holder, as it was measured when this requester last chose one.
struct FabricTrial {
  FabricKind fabric = FabricKind::kTcp;
  // The constants are 0 if they were not measured. The bandwidth is also 0 if it is beyond what the
  // probe can tell. If full slots did not arrive in time, it is the bandwidth they would have
  // needed.
  FabricConstants constants;
  // Predicted time for kNominalExchangeBytes (client/holders/fabric_choice.h). `exchange_us` uses
  // the second best round trip, as the constants do, and `exchange_p50_us` the median one. 0 means
  // that it was not measured.
  double exchange_us = 0;
  double exchange_p50_us = 0;
  // Why no lane of it could be opened. It is empty if one was opened and probed.
  std::string why_not;
};

// One holder as this requester sees it.
struct HolderView {
  // As of the last connection, except its id. It is empty before the first.
  Member member;
  // It is a member of the directory and some call context has a lane to it. No context has found a
  // lane broken since the last one came up. A holder that has just died may look connected until
  // its lease runs out or a lane is next used.
  bool connected = false;
  // When it was not reached: the last try to open a session, and the first of the failed tries
  // since one succeeded. Unset if the last try succeeded, or if the directory has told of a later
  // life since.
  std::optional<Instant> unreached_at, unreached_since;
  FabricKind fabric = FabricKind::kTcp;  // the fabric of the last lane that came up
  // As last measured, which may be long ago. They are 0 if they were never measured.
  FabricConstants constants;
  uint32_t in_flight = 0;   // requests posted and not answered, over all call contexts
  uint32_t lane_count = 0;  // open lanes, over all call contexts
  // The fabrics chosen among, in order of preference. It is empty if there was no choice.
  std::vector<FabricTrial> trials;
  // Why it uses tcp where it should use verbs. It is empty if it does not.
  std::string fallback;
  // How far the cost model was off lately: the median of |measured / predicted - 1| from post to
  // answer. It covers the last 64 dense calls that were one frame and under way alone. It is unset
  // before 16 of them. It is also unset while the fabric was never probed or nothing is known of
  // the kernel's time.
  std::optional<double> model_error;
  // Measured / predicted since the start: of the same calls, and of slices that were pulled.
  RatioCounts route_ratios;
  RatioCounts pull_ratios;
};

}  // namespace ckv
