// Whose costs are measured, and over which fabrics: the common part of `ckvctl calibrate` and
// `ckvctl characterize`. A trial corpus of the model's shape is put on the fleet, and is dropped
// again with the target.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/tools/characterize/run.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet.h"
#include "client/tools/ctl/query/trial_corpus.h"
#include "client/tools/reference_engine/engine.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::ctl {

struct MeasuredOptions {
  // The model: a name of NamedModels or a JSON file of a geometry, or a corpus of the fleet that is
  // of that model. Empty is V2-Lite; at most one of them is set.
  std::string geometry, corpus;
  uint32_t heads = 0;  // query heads; 0 takes the named model's
  // The cost of prefill: given in microseconds a token and layer, or measured on the reference
  // engine. The model is then that engine's. If neither, recomputing is not offered.
  std::optional<double> prefill_us;
  bool uses_reference_engine = false;
  // Fabrics that must work. If empty, all that this machine has and that reach the holder.
  std::vector<std::string> fabrics;
  std::string verbs_device;  // empty is the only one
  bool quick = false;        // fewer sizes and runs
  // Query rows of routes, and tokens of chunks, in place of the default ones. Ascending if set.
  std::vector<uint32_t> query_rows, tokens;
  bool has_sweeps = false;  // also puts the corpora of the sweeps over stores and payloads
};
// Adds the options that both commands have. `options` must outlive the verb.
void AddMeasuredOptions(CLI::App& verb, MeasuredOptions& options);

// The requesters of this process, one per fabric, over the fleet's directory.
struct Lanes {
  Lanes(const std::string& directory_address, Clock* clock)
      : directory(directory_address, clock), factory(clock) {}

  DirectoryStub directory;
  HolderStubFactory factory;
  std::unique_ptr<VerbsFabric> verbs;  // if null, shm and tcp, which every requester has
  std::vector<std::unique_ptr<Requester>> requesters;
  std::vector<CharacterizedLane> lanes;
};

// Everything that a measurement uses, for as long as it runs.
struct MeasuredTarget {
  std::unique_ptr<Fleet> fleet;
  std::string model;  // as a reader knows it
  std::shared_ptr<const Engine> engine;
  std::unique_ptr<TrialCorpus> trial;
  std::vector<std::unique_ptr<TrialCorpus>> sides;
  std::unique_ptr<Lanes> lanes;
  CharacterizeTarget target;
  CharacterizeOptions options;
  std::string subject;
};

//   InvalidArgument     options that exclude each other, or a file that is no geometry.
//   NotFound            no such model, file or corpus.
//   Unavailable         no fabric reaches the holder.
//   else the errors of TrialCorpus::Put and of a fabric that was named.
absl::StatusOr<std::unique_ptr<MeasuredTarget>> PrepareTarget(const Ctl& ctl,
                                                              const MeasuredOptions& options);

}  // namespace ckv::ctl
