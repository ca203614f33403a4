// A fleet of ckv to simulate: its nodes, documents, costs and requests.
//
// The time of everything that is simulated is what ckv adds: reading a context's rows, at each
// layer of each decode step. An engine's own work of a step takes no time.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cost/profile.h"
#include "client/simulate/fabric_tree.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

enum class FleetPolicy : uint8_t {
  kRoute = 0,  // each step is routed
  kFetch,      // all rows are fetched before the first step
  kLocal,      // all rows are recomputed before the first step
  kAuto,       // the product decides for each chunk, step by step
};
inline constexpr size_t kFleetPolicyCount = 4;
std::string_view FleetPolicyName(FleetPolicy policy);  // "route"

// The number of steps that a requester is given with a context (ContextExpectation).
enum class FleetHint : uint8_t { kNone = 0, kExact };

// The constants of nodes, which are all alike.
struct FleetCosts {
  double probe_us = 0;            // T_probe, of one round
  ComputeCurve compute;           // a holder's kernel; not empty
  RequesterConstants here;        // with `attend` not empty
  double nic_bytes_per_s = 25e9;  // each way of a node's link
};
// Constants of a GPU: arXiv:2606.01502 has 16 us and 25 GB/s over IBGDA (section 4.3) and a base of
// 15 us at decode (6.3). FlashMLA has 3000 GB/s of memory and 660 TFLOP/s on an H800. A row of
// 1,152 bytes so takes 0.384 ns to read, and a query row takes 2 x (576 + 512) FLOP of it. Other
// widths are scaled. Merging takes at most 25 us for 1,024 rows (section 4.2).
FleetCosts GpuCosts(const Geometry& geometry);
// Constants of one core of a Zen 5 (deploy/adr/0026-kernel-curves-with-a-floor.md), behind tcp at
// 25 Gbit/s. They are for rows of 576 values.
FleetCosts CoreCosts(const Geometry& geometry);

struct FleetSpec {
  Geometry geometry;
  uint32_t query_rows = 16;  // M_q of a step
  FleetCosts costs;

  uint32_t nodes = 64;
  // The first `holders` nodes hold rows, and the others have requesters. If 0, all do both.
  uint32_t holders = 0;
  uint32_t workers = 1;  // kernels that a node runs at once
  uint32_t nodes_per_rack = 8;
  double oversubscription = 1;  // for the uplinks of racks

  uint32_t documents_per_holder = 4;
  uint32_t document_chunks = 8;
  uint32_t chunk_tokens = 2048;
  uint32_t replicas = 2;
  uint64_t cache_bytes = uint64_t{8} << 30;  // a requester's local row cache
  uint32_t batch_max = 16;                   // contexts that a requester decodes at once

  FleetPolicy policy = FleetPolicy::kAuto;
  FleetHint hint = FleetHint::kNone;
  // Requesters learn from their own attends how slow these are now (LiveHere). If false, the
  // constants apply.
  bool learns_here = true;
  double load = 1;  // times FleetRequestsPerS
  uint32_t requests_per_requester = 64;
  double zipf = 1;             // the document of rank r is drawn with weight r^-zipf
  uint32_t steps_max = 400;    // the longest of the mix
  double steps_mean = 0;       // if above 0, steps are exponentially distributed instead
  double warmup_share = 0.25;  // requests that are not measured
  uint64_t seed = 1;

  // Policies fetch and local: a context holds all of its rows before its first step.
  bool holds_first() const {
    return policy == FleetPolicy::kFetch || policy == FleetPolicy::kLocal;
  }
  uint32_t holder_count() const { return holders == 0 ? nodes : holders; }
  uint32_t requester_count() const { return holders == 0 ? nodes : nodes - holders; }
  uint32_t first_requester() const { return holders; }
  uint32_t document_count() const { return holder_count() * documents_per_holder; }
  uint64_t chunk_bytes() const { return geometry.token_bytes() * chunk_tokens; }
};

inline constexpr uint32_t kFleetNodesMax = 2048;
inline constexpr uint32_t kFleetStepsMax = 100'000;
inline constexpr uint32_t kFleetRequestsMax = 1'000'000;

// Checks values against their ranges and against each other.
//   InvalidArgument     the message begins with the field: "replicas: ...".
absl::Status ValidateFleet(const FleetSpec& spec);

struct FleetRequest {
  double arrival_s = 0;
  uint32_t document = 0;
  uint32_t steps = 1;
};
// Makes the requests of a run, the same for all policies of a seed. They arrive as a Poisson
// process. Steps are those of tests/bench/prefetch/agents_mix.h: steps_max^(u^4) for u in equal
// parts of [0, 1], in random order. So half of the agents make one or two steps, and few make many.
std::vector<FleetRequest> MakeFleetRequests(const FleetSpec& spec);

// Returns the rate that is 100 % load. The holders' kernels are then busy all the time, if each
// step is computed alone and requests are spread evenly. Batches make room for more.
double FleetRequestsPerS(const FleetSpec& spec, const std::vector<FleetRequest>& requests);

// The tree of the fleet: nodes under racks, racks under one core.
FabricSpec FabricOf(const FleetSpec& spec);

// The places of all documents' chunks, by PlaceChunks. All documents are one corpus.
struct FleetPlacement {
  // Chunks of a document that the same holders have.
  struct Group {
    uint32_t id = 0;  // equal for equal lists of holders
    std::vector<uint32_t> chunks;
  };
  std::vector<std::vector<uint32_t>> holders_of_group;
  std::vector<uint32_t> group_of_chunk;
  std::vector<std::vector<Group>> groups_of_document;
};
//   Errors of PlaceChunks.
absl::StatusOr<FleetPlacement> PlaceFleet(const FleetSpec& spec);

}  // namespace ckv
