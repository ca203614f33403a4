// Calls by several threads of one requester at once, and the elbows that follow from their times.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cost/profile_file.h"
#include "client/requester.h"
#include "client/tools/characterize/run.h"
#include "client/tools/characterize/sample.h"
#include "client/tools/characterize/tasks.h"
#include "proto/corpus.h"

namespace ckv {

// The same route of `rows` query rows again and again, with buffers of its own. For one thread.
class RepeatedRoute {
 public:
  // Everything that `context`, `lane` and `selection` refer to must outlive it. `chunks` are of
  // `corpus`. `selection` has rows of these chunks; if empty, all rows are attended.
  RepeatedRoute(const TaskContext& context, const CharacterizedLane& lane,
                std::shared_ptr<const Corpus> corpus, std::vector<ChunkUse> chunks, uint32_t rows,
                std::span<const int32_t> selection = {});
  RepeatedRoute(const RepeatedRoute&) = delete;
  RepeatedRoute& operator=(const RepeatedRoute&) = delete;

  // Routes over layer `layer` modulo the number of layers. Errors as Requester::Attend.
  absl::Status Call(uint32_t layer);
  // Routes over all layers, one after another, as in a decode step. Sets bytes and kernel time of
  // the step. Errors as Requester::Attend.
  absl::Status Step(uint64_t& bytes_out, uint64_t& bytes_in, double& kernel_us);

 private:
  const TaskContext context_;
  Requester& requester_;
  const std::vector<ChunkUse> chunks_;
  const std::vector<uint16_t> q_;
  std::vector<float> o_, m_, l_;
  AttendCall call_;
  AttendReport report_;
};

// `key.parallel` threads route `key.query_rows` query rows over one chunk, or fetch one layer of
// it, again and again. `chunk` is an ordinal of the target's corpus. The threads begin together,
// after each has made its buffers and one call. Each makes 4 timed calls, and up to 40 until
// context.options->parallel_time_max has passed. Returns the TrimmedMean of all timed calls.
//   Errors as Requester::Attend and Requester::Fetch.
absl::StatusOr<Sample> RoutesAtOnce(const TaskContext& context, const CharacterizedLane& lane,
                                    const SampleKey& key, uint32_t chunk);
absl::StatusOr<Sample> FetchesAtOnce(const TaskContext& context, const CharacterizedLane& lane,
                                     const SampleKey& key, uint32_t chunk);

// The mean microseconds of a call, by the number of calls at once, ascending from 1.
using TimesAtOnce = std::vector<std::pair<uint32_t, double>>;
// Returns the highest number of calls at once below the first with which a call takes more than
// twice its time alone. Returns 0 without times.
uint32_t ElbowOf(const TimesAtOnce& times);

// Measures LaneProfile::route_elbow and fetch_elbow, with the target's largest chunk and the query
// rows of one token. `profile` must have a lane for each of the target's, in their order. Takes
// some seconds a lane. A call that fails ends the measurement of its lane, because a holder may not
// have room for as many sessions. The elbow is then that of fewer calls at once, or 0.
void MeasureElbows(const TaskContext& context, Profile& profile);

}  // namespace ckv
