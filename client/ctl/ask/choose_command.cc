// ckvctl agents choose: three agents of one chunk, each by the primitive that the predicate chooses
// for it: one that asks little, one that stays, and one whose chunk no holder has.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cache/calibrate_here.h"
#include "client/cache/paged_cache.h"
#include "client/characterize/calibrate.h"
#include "client/ctl/ask/agents.h"
#include "client/ctl/ask/profile_option.h"
#include "client/ctl/checks.h"
#include "client/ctl/commands.h"
#include "client/ctl/corpus/token_lines.h"
#include "client/decide/what_if.h"
#include "client/engine/reference_engine.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kChunk = 0;           // the corpus' first
constexpr uint32_t kNoteTokens = 48;     // size of the chunk that is nobody's but the agent's
constexpr uint32_t kShortSteps = 1;      // a look
constexpr uint32_t kLongSteps = 20'000;  // a day's work
constexpr uint32_t kRounds = 9;
constexpr Duration kTimeout = std::chrono::seconds(30);

struct ChooseOptions {
  std::string profile;  // if empty, the constants are measured
  std::string corpus;
  std::string text;
  uint32_t tokens = 24;  // decoded by each agent, to compare
};

// Everything the agents stand on.
struct Stage {
  Stage(std::string directory_address, Clock* clock_in)
      : clock(clock_in), directory(std::move(directory_address), clock_in), factory(clock_in) {}

  Clock* const clock;
  WorkerPool pool{1};
  DirectoryStub directory;
  HolderStubFactory factory;
  std::unique_ptr<ReferenceEngine> engine;
  std::unique_ptr<Requester> requester;
  std::shared_ptr<const Corpus> corpus;
  std::vector<int32_t> tokens;  // tokens of the chunk
  RequesterConstants here;
  Candidate holder;

  uint32_t chunk_tokens() const { return corpus->chunks[kChunk].token_count; }
};

// The constants of this machine and of the chunk's holder, measured turn by turn: what is compared
// shares the machine's slow moments.
absl::Status Measure(Stage& stage) {
  const Geometry& geometry = stage.engine->geometry();
  stage.here = CalibrateHere(geometry, *stage.clock);
  CalibrationCall call = {.corpus = stage.corpus,
                          .few = kChunk,
                          .many = kChunk,
                          .query_rows = {1, stage.engine->heads(), 4 * stage.engine->heads()},
                          .wire = PartialDtype::kF32,
                          .merge_per_row_us = stage.here.merge_per_row_us,
                          .deadline = stage.clock->Now() + kTimeout};
  LaneCalibrator lane(stage.requester.get(), call, stage.clock);
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<PagedCache> cache,
                       CacheForTiming(geometry, stage.chunk_tokens()));
  std::vector<ComputeSample> attend;
  for (uint32_t round = 0; round < kRounds; ++round) {
    CKV_RETURN_IF_ERROR(lane.Round());
    for (const uint32_t count : call.query_rows) {
      attend.push_back(
          {double(count), double(stage.chunk_tokens()),
           TimeAttendHere(*cache, stage.chunk_tokens(), count, call.pace, *stage.clock)});
    }
  }
  const LaneCalibration measured = lane.Fit();
  stage.holder.fabric = measured.fabric;
  stage.holder.compute.curve = measured.holder;
  stage.here.attend = FitComputeCurve(attend);
  const Instant begin = stage.clock->Now();
  CKV_RETURN_IF_ERROR(stage.engine
                          ->Prefill(std::span(stage.tokens).first(kNoteTokens), 0, stage.pool,
                                    [](uint32_t) { return absl::OkStatus(); })
                          .status());
  stage.here.prefill_per_token_layer_us =
      double((stage.clock->Now() - begin).count()) / 1e3 / (double(kNoteTokens) * geometry.layers);
  return absl::OkStatus();
}

// The constants of a profile instead, of the fabric that the holder is spoken to over: one attend
// brings a lane up.
absl::Status Recall(Stage& stage, const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const auto profile, LoadProfileFor(path, stage.engine->geometry()));
  const TimingCall call = {.corpus = stage.corpus,
                           .chunk = kChunk,
                           .pace = {.run_count = 1},
                           .deadline = stage.clock->Now() + kTimeout};
  CKV_RETURN_IF_ERROR(TimeRoute(*stage.requester, call, *stage.clock).status());
  const HolderId& holder = stage.corpus->chunks[kChunk].holders[0];
  for (const HolderView& view : stage.requester->KnownHolders()) {
    if (view.member.id != holder) continue;
    const LaneProfile* const lane = profile->Find(holder.name, FabricName(view.fabric));
    if (lane == nullptr) {
      return absl::NotFoundError(absl::StrFormat(
          "%s has no holder %s over %s: run ckvctl calibrate --profile with this fleet", path,
          holder.name, FabricName(view.fabric)));
    }
    stage.here = profile->here;
    stage.holder.fabric = lane->constants;
    stage.holder.compute.curve = lane->compute;
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrFormat("holder %s: no lane to it came up", holder.name));
}

// One agent: what it attends, and for how long.
struct Agent {
  std::string name;
  std::span<const int32_t> tokens;
  uint32_t steps = 1;
  bool held = true;  // a holder has the chunk
};

DecisionInput InputOf(const Stage& stage, const Agent& agent) {
  DecisionInput input;
  input.geometry = stage.engine->geometry();
  input.tokens = agent.tokens.size();
  input.query_rows = stage.engine->heads();
  input.steps = agent.steps;
  input.f32_partials = true;
  input.canonical = true;
  input.cache_room_tokens = agent.tokens.size();
  input.here = stage.here;
  if (agent.held) input.candidates.push_back(stage.holder);
  return input;
}

absl::StatusOr<std::vector<GreedyChoice>> Decode(Stage& stage, const Agent& agent, uint32_t count,
                                                 SequenceOptions options) {
  options.position = agent.tokens.size();
  options.pool = &stage.pool;
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> sequence,
                       stage.engine->Start(std::move(options)));
  CKV_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, MakePrompts("", 1));
  return DecodeGreedy(*sequence, stage.engine->vocabulary(), prompts[0], count,
                      [](const GreedyChoice&) { return absl::OkStatus(); });
}

absl::StatusOr<std::vector<GreedyChoice>> DecodeOver(Stage& stage, const Agent& agent,
                                                     uint32_t count, LocalContext& context) {
  SequenceOptions options;
  options.context = [&](uint32_t layer, const QueryView& q, const PartialView& out) {
    return context.Attend(layer, q, out);
  };
  return Decode(stage, agent, count, std::move(options));
}

absl::StatusOr<std::vector<GreedyChoice>> DecodePrefilled(Stage& stage, const Agent& agent,
                                                          uint32_t count) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> rows,
                       stage.engine->Prefill(agent.tokens, 0, stage.pool,
                                             [](uint32_t) { return absl::OkStatus(); }));
  LocalContext context(stage.engine->geometry(), &stage.pool);
  context.AddCuts(*rows, static_cast<uint32_t>(agent.tokens.size()));
  return DecodeOver(stage, agent, count, context);
}

absl::StatusOr<std::vector<GreedyChoice>> DecodeRouted(Stage& stage, const Agent& agent,
                                                       uint32_t count) {
  const ChunkUse use = {kChunk, 0};
  const ContextPart part = {stage.corpus, {&use, 1}};
  CKV_ASSIGN_OR_RETURN(const Context context,
                       stage.requester->Open({.parts = {&part, 1}}, stage.clock->Now() + kTimeout));
  SequenceOptions options;
  options.whole = [&](uint32_t layer, const QueryView& q, const SequenceRows& sequence,
                      const PartialView& out) {
    const OwnRows own = {sequence.rows, sequence.visible};
    const Segment segment = {.row_count = q.count, .context = &context, .own = {&own, 1}};
    LayerCall call;
    call.layer = layer;
    call.q = q;
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = stage.clock->Now() + kTimeout;
    return stage.requester->Attend(call, out);
  };
  return Decode(stage, agent, count, std::move(options));
}

absl::StatusOr<std::vector<GreedyChoice>> DecodeFetched(Stage& stage, const Agent& agent,
                                                        uint32_t count) {
  const Geometry& geometry = stage.engine->geometry();
  CKV_ASSIGN_OR_RETURN(
      const std::unique_ptr<PagedCache> cache,
      PagedCache::Create(geometry, {.block_count = stage.chunk_tokens() / kCacheBlockTokens + 1}));
  const CacheSequenceId sequence = cache->Begin();
  FetchCall call;
  call.corpus = stage.corpus;
  call.chunk_begin = kChunk;
  call.chunk_end = kChunk + 1;
  call.layer_end = geometry.layers;
  call.deadline = stage.clock->Now() + kTimeout;
  CKV_RETURN_IF_ERROR(stage.requester->FetchInto(call, *cache, sequence));
  // An empty cache gives neighbours, so the chunk is one dense run a layer.
  std::vector<RowView> layers, runs;
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    CKV_RETURN_IF_ERROR(cache->Runs(sequence, layer, runs));
    if (runs.size() != 1) return absl::InternalError("a fresh cache gave blocks apart");
    layers.push_back(runs[0]);
  }
  LocalContext context(geometry, &stage.pool);
  context.AddChunk(std::move(layers));
  return DecodeOver(stage, agent, count, context);
}

struct Outcome {
  Primitive choice = Primitive::kRoute;
  std::string why;
  bool equal = false;
};

absl::StatusOr<Outcome> RunAgent(Stage& stage, const Agent& agent, uint32_t count) {
  const DecisionInput input = InputOf(stage, agent);
  const Decision decision = Decide(input);
  if (!decision.choice) return absl::InternalError(DescribeDecision(decision, input));
  Outcome outcome = {.choice = *decision.choice, .why = DescribeDecision(decision, input)};
  CKV_ASSIGN_OR_RETURN(const auto expected, DecodePrefilled(stage, agent, count));
  absl::StatusOr<std::vector<GreedyChoice>> got = expected;
  if (outcome.choice == Primitive::kRoute) got = DecodeRouted(stage, agent, count);
  if (outcome.choice == Primitive::kFetch) got = DecodeFetched(stage, agent, count);
  if (!got.ok()) return Annotate(got.status(), agent.name);
  outcome.equal =
      std::equal(expected.begin(), expected.end(), got->begin(), got->end(),
                 [](const GreedyChoice& a, const GreedyChoice& b) { return a.token == b.token; });
  return outcome;
}

absl::StatusOr<std::unique_ptr<Stage>> Prepare(const Ctl& ctl, const ChooseOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_RETURN_IF_ERROR(fleet.GetCorpus(options.corpus).status());  // whose errors say what to do
  auto stage = std::make_unique<Stage>(fleet.directory_address(), ctl.clock);
  CKV_ASSIGN_OR_RETURN(stage->engine, ReferenceEngine::Create({}));
  RequesterOptions requester;
  requester.id = "ckvctl";
  requester.clock = ctl.clock;
  CKV_ASSIGN_OR_RETURN(stage->requester,
                       Requester::Create(requester, &stage->directory, &stage->factory));
  CKV_ASSIGN_OR_RETURN(stage->corpus,
                       stage->requester->Resolve(options.corpus, ctl.fleet.tenant,
                                                 ctl.clock->Now() + ctl.fleet.timeout));
  if (stage->corpus->geometry != stage->engine->geometry()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "corpus %s is not of the reference engine's model: load one with --text", options.corpus));
  }
  CKV_ASSIGN_OR_RETURN(stage->tokens, ReadTextTokens(options.text, stage->chunk_tokens()));
  if (stage->chunk_tokens() < kNoteTokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("corpus %s: its first chunk has %d tokens, at least %d are needed",
                        options.corpus, stage->chunk_tokens(), kNoteTokens));
  }
  Corpus first = *stage->corpus;
  first.chunks.resize(kChunk + 1);
  CKV_RETURN_IF_ERROR(CheckText(first, stage->tokens));
  return stage;
}

absl::Status RunChoose(const Ctl& ctl, const ChooseOptions& options) {
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Stage> stage, Prepare(ctl, options));
  CKV_RETURN_IF_ERROR(options.profile.empty() ? Measure(*stage) : Recall(*stage, options.profile));
  // Backwards, so that nobody has loaded it as the start of a corpus.
  std::vector<int32_t> note(stage->tokens.rbegin(), stage->tokens.rbegin() + kNoteTokens);
  const Agent agents[] = {{"asks once", stage->tokens, kShortSteps, true},
                          {"stays", stage->tokens, kLongSteps, true},
                          {"brings a note of its own", note, kShortSteps, false}};
  Table table({{"AGENT"}, {"TOKENS", true}, {"STEPS", true}, {"CHOICE"}, {"CHECK"}, {"WHY"}});
  Json json = Json::array();
  bool all_equal = true;
  for (const Agent& agent : agents) {
    CKV_ASSIGN_OR_RETURN(const Outcome outcome, RunAgent(*stage, agent, options.tokens));
    const std::string choice(PrimitiveName(outcome.choice));
    table.AddRow({agent.name, std::to_string(agent.tokens.size()), std::to_string(agent.steps),
                  choice, outcome.equal ? "equal" : "DIFFERS", outcome.why});
    json.push_back({{"agent", agent.name},
                    {"tokens", agent.tokens.size()},
                    {"steps", agent.steps},
                    {"choice", choice},
                    {"equal", outcome.equal},
                    {"why", outcome.why}});
    all_equal &= outcome.equal;
  }
  ctl.Print(table.Render(), {{"agents", json}, {"equal", all_equal}});
  if (!all_equal) return absl::InternalError("an agent's tokens differ from a prefill's");
  return absl::OkStatus();
}

}  // namespace

void AddChooseCommand(CLI::App& agents, Ctl& ctl) {
  const auto options = std::make_shared<ChooseOptions>();
  CLI::App* choose = AddVerb(
      agents, "choose", "Three agents, each by the primitive the predicate chooses for it",
      "  ckvctl agents choose --corpus gpl --text /usr/share/common-licenses/GPL-3\n\n"
      "Measures the constants, asks the predicate, does what it says, and compares the tokens\n"
      "with a prefill of the same chunk here.");
  choose->add_option("--corpus", options->corpus, "A corpus loaded with --text")->required();
  choose->add_option("--text", options->text, "The file it was loaded from")->required();
  choose->add_option("--tokens", options->tokens, "Tokens that each agent decodes")
      ->capture_default_str()
      ->check(InRange(1u, 4096u));
  AddProfileOption(*choose, options->profile,
                   "Constants that ckvctl calibrate --profile wrote here (default: measure them)");
  choose->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunChoose(ctl, *options); }; });
}

}  // namespace ckv::ctl
