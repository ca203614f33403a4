// A small fleet for tests.

#pragma once

#include "client/simulate/fleet_spec.h"
#include "proto/named_models.h"

namespace ckv::test {

inline FleetSpec SmallFleet(FleetPolicy policy, double load = 1, uint64_t seed = 1) {
  FleetSpec spec;
  const NamedModel model = FindModel("deepseek-v2-lite").value();
  spec.geometry = model.geometry;
  spec.query_rows = model.heads;
  spec.costs = GpuCosts(spec.geometry);
  spec.nodes = 8;
  spec.nodes_per_rack = 4;
  spec.requests_per_requester = 32;
  spec.policy = policy;
  spec.load = load;
  spec.seed = seed;
  return spec;
}

}  // namespace ckv::test
