// The metrics of a holder.

#pragma once

#include "proto/base/clock.h"
#include "server/holder/holder.h"
#include "server/session/load_samples.h"
#include "server/upkeep/replica_keeper.h"
#include "server/web/metrics_page.h"

namespace ckv {

void AddHolder(Holder& holder, Instant now, MetricsPage& page);
// How the holder's batches compare with its elbow (server/health/elbow_meter.h).
void AddLoad(const HolderLoad& load, MetricsPage& page);
// The copies that a holder keeps of what its process' requester fetched.
void AddReplicas(const ReplicaStats& stats, MetricsPage& page);

}  // namespace ckv
