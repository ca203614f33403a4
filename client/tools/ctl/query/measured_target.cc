// PrepareTarget, in order: the model (ChooseModel), its trial corpus with less where a holder has
// no space (PutTrial), the corpora of the sweeps over stores and payloads (PutSides), and a
// requester of this process for each fabric (OpenLanes). Each trial corpus is dropped by its
// destructor.

#include "client/tools/ctl/query/measured_target.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cost/profile_file.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/corpus/npy_source.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "proto/named_models.h"
#include "transport/fabric.h"

namespace ckv::ctl {
namespace {

const std::vector<std::string>& FabricNames() {
  static const std::vector<std::string> names = {"shm", "tcp", "verbs"};
  return names;
}

// A requester of that fabric only.
absl::StatusOr<std::unique_ptr<Requester>> MakeRequester(const Ctl& ctl,
                                                         const MeasuredOptions& chosen,
                                                         const std::string& fabric, Lanes& lanes) {
  RequesterOptions options;
  CKV_ASSIGN_OR_RETURN(options.fabric, ParseFabricName(fabric));
  options.id = "ckvctl";
  options.clock = ctl.clock;
  if (options.fabric == FabricKind::kVerbs) {
    VerbsOptions device;
    device.device = chosen.verbs_device;
    CKV_ASSIGN_OR_RETURN(lanes.verbs, NewVerbsFabric(device, ctl.clock));
    options.fabrics = {lanes.verbs.get()};
  }
  return Requester::Create(options, &lanes.directory, &lanes.factory);
}

// Fabrics named on the command line must work. If none is named, takes those that this machine has
// and that reach the holder.
absl::Status OpenLanes(const Ctl& ctl, const MeasuredOptions& chosen,
                       const CharacterizeTarget& target, Lanes& lanes) {
  const bool all = chosen.fabrics.empty();
  std::vector<std::string> refused;
  for (const std::string& name : all ? FabricNames() : chosen.fabrics) {
    auto made = MakeRequester(ctl, chosen, name, lanes);
    if (!made.ok()) {
      if (!all) return Annotate(made.status(), "--fabric " + name);
      continue;
    }
    std::unique_ptr<Requester> requester = *std::move(made);
    const TimingCall call = {.corpus = target.corpus,
                             .chunk = target.sizes[0],
                             .pace = {.run_count = 1},
                             .deadline = ctl.clock->Now() + ctl.fleet.timeout};
    if (const auto reached = TimeRoute(*requester, call, *ctl.clock); !reached.ok()) {
      if (!all) return Annotate(reached.status(), "--fabric " + name);
      refused.push_back(absl::StrFormat("%s: %s", name, reached.status().message()));
      continue;
    }
    lanes.lanes.push_back({name, requester.get()});
    lanes.requesters.push_back(std::move(requester));
  }
  for (const std::string& line : refused) ctl.Note("ckvctl: not measured: " + line);
  if (lanes.lanes.empty()) return absl::UnavailableError("no fabric reaches the holder");
  return absl::OkStatus();
}

std::string SubjectOf(const Geometry& geometry, const TrialCorpus& trial, bool quick) {
  std::vector<std::string> names;
  for (const Member& holder : trial.holders()) names.push_back(holder.id.name);
  return ckv::SubjectOf(geometry, HostIdentity(), names, quick);
}

// The rows that push others out of a holder's caches are twice what a core's last cache holds. The
// size at a holder elsewhere is unknown, and assumed to be like this machine's.
constexpr uint64_t kPushOutBytesMin = uint64_t{32} << 20, kPushOutBytesMax = uint64_t{256} << 20;
constexpr uint64_t kLastCacheBytes = uint64_t{32} << 20;  // if the kernel does not report it
// Tokens of the chunk on each holder where there is no space for the largest selection.
constexpr uint32_t kShortSpreadTokens = 512;
constexpr uint32_t kHeadCountMax = 1024;

// Returns the bytes of the last cache that one core can use. sysconf(_SC_LEVEL3_CACHE_SIZE) counts
// all caches of a package on some processors, 384 MiB where a core has 32.
uint64_t LastCacheBytes() {
  uint64_t largest_kib = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(absl::StrFormat("/sys/devices/system/cpu/cpu0/cache/index%d/size", index));
    uint64_t kib = 0;  // "32768K"
    if (file >> kib) largest_kib = std::max(largest_kib, kib);
  }
  return largest_kib > 0 ? largest_kib << 10 : kLastCacheBytes;
}

uint64_t PushOutBytes() {
  return std::clamp(2 * LastCacheBytes(), kPushOutBytesMin, kPushOutBytesMax);
}

// The trial corpus of the model. A holder without space for all of it gets less, step by step: no
// rows that push others out, then shorter chunks on each holder.
absl::StatusOr<std::unique_ptr<TrialCorpus>> PutTrial(const Ctl& ctl, Fleet& fleet,
                                                      TrialShape shape) {
  auto trial = TrialCorpus::Put(ctl, fleet, shape);
  if (!absl::IsResourceExhausted(trial.status())) return trial;
  const absl::Status whole = trial.status();
  const std::string needed = FormatBytes(shape.push_out_bytes);
  shape.push_out_bytes = 0;
  trial = TrialCorpus::Put(ctl, fleet, shape);
  if (absl::IsResourceExhausted(trial.status())) {
    shape.spread_tokens = kShortSpreadTokens;
    trial = TrialCorpus::Put(ctl, fleet, shape);
  }
  if (absl::IsResourceExhausted(trial.status())) return whole;
  if (trial.ok()) {
    ctl.Note(absl::StrFormat(
        "ckvctl: not measured: how fast rows are read from memory, which takes "
        "%s more of the holder's room%s",
        needed,
        shape.spread_tokens == kShortSpreadTokens ? ", and selections of more than 512 rows" : ""));
  }
  return trial;
}

absl::StatusOr<double> PrefillUs(const Engine& engine, uint64_t tokens, Clock& clock) {
  std::vector<int32_t> text(tokens);
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<int32_t>(i * 31 % engine.vocabulary());
  }
  WorkerPool pool(1);
  const Instant begin = clock.Now();
  CKV_RETURN_IF_ERROR(
      engine.Prefill(text, 0, pool, [](uint32_t) { return absl::OkStatus(); }).status());
  return double((clock.Now() - begin).count()) / 1e3;
}

struct Model {
  std::string name;
  Geometry geometry;
  uint32_t heads = 0;  // 0 if not known
};

absl::StatusOr<Model> ChooseModel(const MeasuredOptions& options, const Engine* engine,
                                  Fleet& fleet) {
  if (engine != nullptr) return Model{"the reference engine", engine->geometry(), 16};
  if (!options.corpus.empty()) {
    CKV_ASSIGN_OR_RETURN(const Corpus corpus, fleet.GetCorpus(options.corpus));
    return Model{corpus.geometry.model, corpus.geometry, 0};
  }
  const std::string name = options.geometry.empty() ? "deepseek-v2-lite" : options.geometry;
  auto model = FindModel(name);
  if (model.ok()) return Model{name, model->geometry, model->heads};
  auto geometry = ReadGeometryFile(name);
  if (absl::IsNotFound(geometry.status())) {
    return absl::NotFoundError(absl::StrFormat("--geometry: %s, and there is no such file",
                                               std::string(model.status().message())));
  }
  if (!geometry.ok()) return geometry.status();
  return Model{geometry->model, *geometry, 0};
}

// Whether the values rise, each above the one before.
bool Ascends(const std::vector<uint32_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

absl::Status CheckOptions(const MeasuredOptions& options) {
  if (!Ascends(options.query_rows)) return absl::InvalidArgumentError("--mq: values must rise");
  if (!Ascends(options.tokens) || options.tokens.size() == 1) {
    return absl::InvalidArgumentError(
        "--tokens: two sizes at least, each above the one before: constants are lines through "
        "several");
  }
  const int chosen = int{!options.geometry.empty()} + int{!options.corpus.empty()} +
                     int{options.uses_reference_engine};
  if (chosen > 1) {
    return absl::InvalidArgumentError(
        "--geometry, --corpus and --reference-engine each name a model: give one");
  }
  if (options.uses_reference_engine && options.prefill_us) {
    return absl::InvalidArgumentError(
        "--prefill-us and --reference-engine both give the cost of prefill: give one");
  }
  return absl::OkStatus();
}

// Puts chunks of `tokens` each on the first holder.
absl::StatusOr<SideCorpus> PutSide(const Ctl& ctl, const Geometry& geometry,
                                   const std::vector<uint32_t>& tokens, MeasuredTarget& to) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<TrialCorpus> trial,
                       TrialCorpus::Put(ctl, *to.fleet, {.geometry = geometry, .sizes = tokens}));
  CKV_ASSIGN_OR_RETURN(Corpus corpus, to.fleet->GetCorpus(trial->name()));
  SideCorpus side = {std::make_shared<const Corpus>(std::move(corpus)), trial->sizes()};
  to.sides.push_back(std::move(trial));
  return side;
}

// The corpora of the sweeps over the size of a store (32k tokens, as in section 6.3) and over
// payloads (Table 1). They have one layer: no sweep of theirs depends on more.
absl::Status PutSides(const Ctl& ctl, Geometry geometry, MeasuredTarget& to) {
  geometry.layers = 1;
  auto store = PutSide(ctl, geometry, std::vector<uint32_t>(16, 2048), to);
  if (absl::IsResourceExhausted(store.status())) {
    ctl.Note(absl::StrFormat(
        "ckvctl: not measured: selections of stores of several sizes, which take %s more of the "
        "holder's room",
        FormatBytes(uint64_t{16} * 2048 * geometry.row_bytes())));
  } else if (!store.ok()) {
    return store.status();
  } else {
    to.target.store = *std::move(store);
  }
  // 256 + 32 values as MiniCPM3 has, the model's, and the widest that there may be.
  const std::pair<uint32_t, uint32_t> widths[] = {
      {256, 32}, {geometry.d_v, geometry.d_rope}, {960, 64}};
  for (const auto& [d_v, d_rope] : widths) {
    Geometry other = geometry;
    other.dtype = RowDtype::kBf16;
    other.d_v = d_v;
    other.d_rope = d_rope;
    other.d_qk = d_v + d_rope;
    if (d_rope == 0) other.rope.style = RopeStyle::kNone;
    CKV_ASSIGN_OR_RETURN(SideCorpus side, PutSide(ctl, other, {64}, to));
    to.target.payloads.push_back(std::move(side));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> SizesOf(const MeasuredOptions& options) {
  if (!options.tokens.empty()) return options.tokens;
  if (options.quick) return {64, 512, 2048};
  return {64, 128, 256, 512, 1024, 2048, 4096};
}

}  // namespace

void AddMeasuredOptions(CLI::App& verb, MeasuredOptions& options) {
  std::vector<std::string> names;
  for (const NamedModel& model : NamedModels()) names.push_back(model.name);
  verb.add_option("--geometry", options.geometry,
                  "Model to measure for: " + absl::StrJoin(names, ", ") +
                      ", or a JSON file of a geometry (default: deepseek-v2-lite)")
      ->type_name("NAME|FILE");
  verb.add_option("--corpus", options.corpus, "Measure for the model of this corpus")
      ->type_name("NAME");
  verb.add_option("--heads", options.heads,
                  "Query heads of the model: query rows of one token (default: the named model's)")
      ->check(InRange(1u, kHeadCountMax))
      ->type_name("N");
  verb.add_option("--prefill-us", options.prefill_us,
                  "Cost of prefill in your engine, in us a token and layer: recomputing is then "
                  "offered")
      ->check(Positive())
      ->type_name("US");
  verb.add_flag("--reference-engine", options.uses_reference_engine,
                "Measure for the reference engine's small model, with its prefill");
  verb.add_option("--fabric", options.fabrics,
                  "Only these; fails if one does not work (default: those that do)")
      ->check(OneOf(FabricNames()))
      ->type_name(JoinNames(FabricNames()));
  verb.add_option("--verbs-device", options.verbs_device,
                  "RDMA device of verbs, as in /sys/class/infiniband (default: the only one)")
      ->type_name("NAME");
}

absl::StatusOr<std::unique_ptr<MeasuredTarget>> PrepareTarget(const Ctl& ctl,
                                                              const MeasuredOptions& options) {
  CKV_RETURN_IF_ERROR(CheckOptions(options));
  auto made = std::make_unique<MeasuredTarget>();
  made->fleet = std::make_unique<Fleet>(ctl.fleet, ctl.clock);
  if (options.uses_reference_engine) {
    CKV_ASSIGN_OR_RETURN(made->engine, ReferenceEngine::Create({}));
  }
  made->options = options.quick ? QuickCharacterization() : FullCharacterization();
  if (!options.query_rows.empty()) made->options.query_rows = options.query_rows;
  made->options.has_sweeps = options.has_sweeps;
  CKV_RETURN_IF_ERROR(made->fleet->directory().status());
  CKV_ASSIGN_OR_RETURN(Model model, ChooseModel(options, made->engine.get(), *made->fleet));
  model.geometry.index.reset();  // only rows are measured
  made->model = model.name;
  made->target.heads = options.heads > 0 ? options.heads : model.heads;
  if (made->target.heads == 0) {
    return absl::InvalidArgumentError(
        "the number of query heads is not part of a geometry: give --heads");
  }
  const TrialShape shape = {.geometry = model.geometry,
                            .sizes = SizesOf(options),
                            .spread_tokens = kSelectedRows.back(),
                            .push_out_bytes = PushOutBytes()};
  CKV_ASSIGN_OR_RETURN(made->trial, PutTrial(ctl, *made->fleet, shape));
  CKV_ASSIGN_OR_RETURN(Corpus corpus, made->fleet->GetCorpus(made->trial->name()));
  CharacterizeTarget& target = made->target;
  target.corpus = std::make_shared<const Corpus>(std::move(corpus));
  target.sizes = made->trial->sizes();
  target.push_out = made->trial->push_out();
  target.spread = made->trial->spread();
  if (made->engine != nullptr) {
    target.prefill = [engine = made->engine, clock = ctl.clock](uint64_t tokens) {
      return PrefillUs(*engine, tokens, *clock);
    };
  } else if (options.prefill_us) {
    target.prefill = [us = *options.prefill_us * model.geometry.layers](uint64_t tokens) {
      return double(tokens) * us;
    };
  }
  if (options.has_sweeps) CKV_RETURN_IF_ERROR(PutSides(ctl, model.geometry, *made));
  made->lanes = std::make_unique<Lanes>(made->fleet->directory_address(), ctl.clock);
  CKV_RETURN_IF_ERROR(OpenLanes(ctl, options, target, *made->lanes));
  target.lanes = made->lanes->lanes;
  made->subject = SubjectOf(model.geometry, *made->trial, options.quick);
  return made;
}

}  // namespace ckv::ctl
