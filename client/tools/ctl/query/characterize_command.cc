// ckvctl calibrate, ckvctl characterize: the costs of routing, fetching and recomputing on this
// fleet. Both begin with Prepare, in order: the reference engine, a trial corpus (PutTrial), and a
// requester of this process for each fabric (OpenLanes). RunCalibrate then measures the constants
// and writes the profile. RunCharacterize runs the sweeps of client/tools/characterize, appends
// samples to a file that an interrupted run continues, and writes findings and the report. The
// trial corpus is dropped at the end.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cost/profile_file.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/tools/characterize/calibrate.h"
#include "client/tools/characterize/findings.h"
#include "client/tools/characterize/run.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/query/figures.h"
#include "client/tools/ctl/query/trial_corpus.h"
#include "client/tools/ctl/result_folder.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "store/formats/output_file.h"
#include "transport/fabric.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::ctl {
namespace {

struct CharacterizeCommand {
  std::string folder;
  std::string profile;  // the profile that calibrate makes
  std::vector<std::string> fabrics;
  std::string verbs_device;
  bool quick = false;
};

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

const std::vector<std::string>& FabricNames() {
  static const std::vector<std::string> names = {"shm", "tcp", "verbs"};
  return names;
}

// A requester of that fabric only.
absl::StatusOr<std::unique_ptr<Requester>> MakeRequester(const Ctl& ctl,
                                                         const CharacterizeCommand& command,
                                                         const std::string& fabric, Lanes& lanes) {
  RequesterOptions options;
  CKV_ASSIGN_OR_RETURN(options.fabric, ParseFabricName(fabric));
  options.id = "ckvctl";
  options.clock = ctl.clock;
  if (options.fabric == FabricKind::kVerbs) {
    VerbsOptions device;
    device.device = command.verbs_device;
    CKV_ASSIGN_OR_RETURN(lanes.verbs, NewVerbsFabric(device, ctl.clock));
    options.fabrics = {lanes.verbs.get()};
  }
  return Requester::Create(options, &lanes.directory, &lanes.factory);
}

// Fabrics named on the command line must work. If none is named, takes those that this machine has
// and that reach the holder.
absl::Status OpenLanes(const Ctl& ctl, const CharacterizeCommand& command,
                       const CharacterizeTarget& target, Lanes& lanes) {
  const bool all = command.fabrics.empty();
  std::vector<std::string> refused;
  for (const std::string& name : all ? FabricNames() : command.fabrics) {
    auto made = MakeRequester(ctl, command, name, lanes);
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

// If the holder has no space for rows that push others out, it is measured without them.
absl::StatusOr<std::unique_ptr<TrialCorpus>> PutTrial(const Ctl& ctl, Fleet& fleet,
                                                      TrialShape shape) {
  auto trial = TrialCorpus::Put(ctl, fleet, shape);
  if (!absl::IsResourceExhausted(trial.status())) return trial;
  shape.push_out_bytes = 0;
  auto smaller = TrialCorpus::Put(ctl, fleet, shape);
  if (!smaller.ok()) return trial;
  ctl.Note(
      absl::StrFormat("ckvctl: not measured: how fast rows are read from memory, which takes %s "
                      "more of the holder's room",
                      FormatBytes(PushOutBytes())));
  return smaller;
}

// Everything that a measurement uses, for as long as it runs.
struct Setup {
  std::unique_ptr<Fleet> fleet;
  std::shared_ptr<const Engine> engine;
  std::unique_ptr<TrialCorpus> trial;
  std::unique_ptr<Lanes> lanes;
  CharacterizeTarget target;
  CharacterizeOptions options;
  std::string subject;
};

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

absl::StatusOr<std::unique_ptr<Setup>> Prepare(const Ctl& ctl, const CharacterizeCommand& command) {
  auto setup = std::make_unique<Setup>();
  setup->fleet = std::make_unique<Fleet>(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(setup->engine, ReferenceEngine::Create({}));
  setup->options = command.quick ? QuickCharacterization() : FullCharacterization();
  TrialShape shape;
  shape.geometry = setup->engine->geometry();
  shape.sizes = command.quick ? std::vector<uint32_t>{64, 512, 2048}
                              : std::vector<uint32_t>{64, 128, 256, 512, 1024, 2048, 4096};
  shape.spread_tokens = 512;
  CKV_RETURN_IF_ERROR(setup->fleet->directory().status());
  shape.push_out_bytes = PushOutBytes();
  CKV_ASSIGN_OR_RETURN(setup->trial, PutTrial(ctl, *setup->fleet, shape));
  CKV_ASSIGN_OR_RETURN(Corpus corpus, setup->fleet->GetCorpus(setup->trial->name()));
  setup->target.corpus = std::make_shared<const Corpus>(std::move(corpus));
  setup->target.sizes = setup->trial->sizes();
  setup->target.push_out = setup->trial->push_out();
  setup->target.spread = setup->trial->spread();
  setup->target.prefill = [engine = setup->engine, clock = ctl.clock](uint64_t tokens) {
    return PrefillUs(*engine, tokens, *clock);
  };
  setup->lanes = std::make_unique<Lanes>(setup->fleet->directory_address(), ctl.clock);
  CKV_RETURN_IF_ERROR(OpenLanes(ctl, command, setup->target, *setup->lanes));
  setup->target.lanes = setup->lanes->lanes;
  setup->subject = SubjectOf(shape.geometry, *setup->trial, command.quick);
  return setup;
}

// Returns the time to load one token's row of one layer, as text.
std::string FloorText(const MemoryFloor& floor) {
  return floor.us_per_token > 0 ? absl::StrFormat("%.3g ns a token", 1e3 * floor.us_per_token)
                                : "-";
}

std::string ProfileText(const Profile& profile) {
  Table table({{"HOLDER"},
               {.title = "FABRIC", .key = true},
               {"T_PROBE", true},
               {"BW", true},
               {"FETCH BW", true},
               {"FLOOR", true},
               {"ONE ROW, 1024 TOKENS", true},
               {"16 ROWS", true},
               {"256 ROWS", true}});
  for (const LaneProfile& lane : profile.lanes) {
    table.AddRow({lane.holder, lane.fabric, FormatMicroseconds(lane.constants.t_probe_us),
                  FormatRate(lane.constants.bandwidth_bytes_per_s),
                  FormatRate(lane.constants.fetch_bandwidth_bytes_per_s),
                  FloorText(lane.compute.floor), FormatMicroseconds(lane.compute.Us(1, 1024)),
                  FormatMicroseconds(lane.compute.Us(16, 1024)),
                  FormatMicroseconds(lane.compute.Us(256, 1024))});
  }
  return table.Render() + "\n" +
         RenderFields(
             {{"merge here", FormatMicroseconds(profile.here.merge_per_row_us) + " a row"},
              {"splice here",
               FormatMicroseconds(profile.here.splice_per_token_layer_us) + " a token and layer"},
              {"prefill here", profile.here.prefill_per_token_layer_us
                                   ? FormatMicroseconds(*profile.here.prefill_per_token_layer_us) +
                                         " a token and layer"
                                   : "no engine"},
              {"attend here", FormatMicroseconds(profile.here.attend.Us(16, 1024)) +
                                  " for 16 rows of 1024 tokens, one layer"},
              {"memory here", DescribeFloor(profile.here.attend)}});
}

absl::Status RunCalibrate(const Ctl& ctl, const CharacterizeCommand& command) {
  if (!command.profile.empty()) CKV_RETURN_IF_ERROR(CheckOutput(command.profile, "--profile"));
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Setup> setup, Prepare(ctl, command));
  CKV_ASSIGN_OR_RETURN(const Profile profile,
                       CalibrateTarget(setup->target, setup->options, setup->subject, *ctl.clock));
  if (!command.profile.empty()) CKV_RETURN_IF_ERROR(WriteProfile(command.profile, profile));
  ctl.Print(ProfileText(profile), Json::parse(FormatProfile(profile)));
  return absl::OkStatus();
}

// Returns the folder's profile, if an earlier run of the same subject left one, so that samples and
// predictions use the same constants.
std::optional<Profile> KnownProfile(const Setup& setup, const std::string& path) {
  auto known = ReadProfile(path);
  if (!known.ok() || known->subject != setup.subject) return std::nullopt;
  for (const CharacterizedLane& lane : setup.target.lanes) {
    if (known->Find(setup.trial->holders()[0].id.name, lane.fabric) == nullptr) return std::nullopt;
  }
  return *std::move(known);
}

Json KernelsJson(std::span<const KernelCurve> kernels) {
  Json json = Json::array();
  for (const KernelCurve& kernel : kernels) {
    json.push_back({{"kernel", kernel.name},
                    {"floor_us_per_token", kernel.curve.floor.us_per_token},
                    {"floor_shown_share", kernel.curve.floor.shown_share},
                    {"query_rows_bound_by_memory", RowsBoundByMemory(kernel.curve)}});
  }
  return json;
}

std::string KernelsText(std::span<const KernelCurve> kernels) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const KernelCurve& kernel : kernels)
    fields.emplace_back("kernel " + kernel.name, DescribeFloor(kernel.curve));
  return RenderFields(fields);
}

std::string FindingsText(std::span<const FabricFindings> findings) {
  // RIGHT: points outside a tie of 10 %; SURELY: those of them that differ by more than the noise.
  Table table({{"FABRIC"},
               {"MAPE", true},
               {"M_q >= 512", true},
               {"REGRET", true},
               {"RIGHT", true},
               {"SURELY", true}});
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  const auto share_of = [&](double share, uint32_t count) -> std::string {
    return count == 0 ? "-" : absl::StrFormat("%s of %d", percent(share), count);
  };
  for (const FabricFindings& one : findings) {
    table.AddRow({one.fabric, percent(one.all.mape), percent(one.large.mape), percent(one.regret),
                  share_of(one.right_share, one.clear_count),
                  share_of(one.resolved_right_share, one.resolved_count)});
  }
  return table.Render();
}

// Shows one progress bar per stage.
class Stages {
 public:
  explicit Stages(const Ctl& ctl) : ctl_(ctl) {}
  void Report(const char* stage, size_t done, size_t total) {
    if (progress_ == nullptr || stage != stage_) {
      progress_.reset();
      progress_ = ctl_.StartProgress(std::string("measure ") + stage, "runs", total);
      stage_ = stage;
      done_ = 0;
    }
    progress_->Advance(done - done_);
    done_ = done;
  }
  void End() { progress_.reset(); }

 private:
  const Ctl& ctl_;
  std::unique_ptr<Progress> progress_;
  std::string_view stage_;
  size_t done_ = 0;
};

// Samples of rows in a processor cache must not be mixed with those of rows in none.
std::string SamplesSubject(const Setup& setup) {
  return setup.subject + (setup.target.push_out.empty() ? "" : ", rows in no cache");
}

absl::Status RunCharacterize(const Ctl& ctl, const CharacterizeCommand& command) {
  const Instant start = ctl.clock->Now();
  CKV_RETURN_IF_ERROR(MakeFolder(command.folder));
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<Setup> setup, Prepare(ctl, command));
  CKV_ASSIGN_OR_RETURN(SampleFile file,
                       SampleFile::Open(command.folder + "/samples.csv", SamplesSubject(*setup)));
  const size_t known_count = file.samples().size();
  const std::string profile_path = command.folder + "/profile.json";
  Stages stages(ctl);
  const CharacterizeWatch watch = {
      .progress = [&](const char* stage, size_t done,
                      size_t total) { stages.Report(stage, done, total); },
      .calibrated = [&](const Profile& profile) { return WriteProfile(profile_path, profile); }};
  CKV_ASSIGN_OR_RETURN(const Profile profile,
                       Characterize(setup->target, setup->options, setup->subject,
                                    KnownProfile(*setup, profile_path), file, *ctl.clock, watch));
  stages.End();
  const Geometry& geometry = setup->target.corpus->geometry;
  const auto findings =
      FindingsOf(file.samples(), geometry.layers, CharacterizedSteps(),
                 [&](const std::string& fabric, uint32_t rows, uint64_t tokens, uint32_t steps) {
                   return PredictChoice(profile, geometry, fabric, rows, tokens, steps);
                 });
  const std::vector<KernelCurve> kernels = KernelCurvesOf(profile);
  FiguresInput input = {.facts = {{"measured", setup->subject}},
                        .layers = geometry.layers,
                        .row_bytes = geometry.row_bytes(),
                        .findings = findings,
                        .kernels = kernels};
  for (const LaneProfile& lane : profile.lanes) {
    input.facts.emplace_back(
        absl::StrFormat("%s over %s", lane.holder, lane.fabric),
        absl::StrFormat("T_probe %s, BW %s, fetch BW %s",
                        FormatMicroseconds(lane.constants.t_probe_us),
                        FormatRate(lane.constants.bandwidth_bytes_per_s),
                        FormatRate(lane.constants.fetch_bandwidth_bytes_per_s)));
  }
  CKV_ASSIGN_OR_RETURN(const bool drawn, DrawFigures(command.folder, input));
  const std::string report = command.folder + "/report.html";
  if (!drawn) ctl.Note(NotDrawnText(report, command.folder + "/figures.py"));
  ctl.Print(
      FindingsText(findings) + "\n" + KernelsText(kernels) +
          absl::StrFormat(
              "\n%d points, %d of them from before, in %s; %s%s/samples.csv, %s/profile.json\n",
              file.samples().size(), known_count, FormatDuration(ctl.clock->Now() - start),
              drawn ? report + ", " : "", command.folder, command.folder),
      {{"findings", FindingsJson(findings)},
       {"kernels", KernelsJson(kernels)},
       {"points", file.samples().size()},
       {"points_from_before", known_count},
       {"report", drawn ? Json(report) : Json()}});
  return absl::OkStatus();
}

void AddFabrics(CLI::App& verb, CharacterizeCommand& command) {
  verb.add_option("--fabric", command.fabrics,
                  "Only these; fails if one does not work (default: those that do)")
      ->check(OneOf(FabricNames()))
      ->type_name(JoinNames(FabricNames()));
  verb.add_option("--verbs-device", command.verbs_device,
                  "RDMA device of verbs, as in /sys/class/infiniband (default: the only one)")
      ->type_name("NAME");
}

}  // namespace

void AddCharacterizeCommands(CLI::App& app, Ctl& ctl) {
  const auto calibration = std::make_shared<CharacterizeCommand>();
  calibration->quick = true;
  CLI::App* calibrate = AddVerb(
      app, "calibrate", "Measure the constants of the cost model; takes some seconds",
      "  ckvctl calibrate\n  ckvctl calibrate --profile fleet.json --fabric tcp\n\n"
      "Kernels and fetches are measured of one holder, the first by name; run it where the\n"
      "requester runs. Puts a corpus of 50 to 280 MB on that holder, and 2.4 MB on each, and "
      "drops it\n"
      "again, also when interrupted. A killed one leaves it: ckvctl corpus drop trial-...");
  calibrate->add_option("--profile", calibration->profile, "Write the constants to this file")
      ->type_name("FILE");
  AddFabrics(*calibrate, *calibration);
  calibrate->callback([&ctl, calibration] {
    ctl.run = [&ctl, calibration] { return RunCalibrate(ctl, *calibration); };
  });

  const auto command = std::make_shared<CharacterizeCommand>();
  CLI::App* characterize = AddVerb(
      app, "characterize",
      "Measure route, fetch and local over sizes, and report against the model",
      "  ckvctl characterize --dir costs --quick\n  ckvctl characterize --dir costs --fabric "
      "tcp\n\n"
      "Writes DIR/report.html (plots, nothing from the network), DIR/samples.csv and\n"
      "DIR/profile.json. The plots take Debian's python3-matplotlib; DIR/figures.py draws them\n"
      "again. RIGHT is how often the predicate chose the best, or one within 10 % of\n"
      "it. SURELY counts only points whose costs differ by more than the noise. A run that was\n"
      "interrupted continues where it stopped. The grid of routes, fetches and prefills is "
      "measured in\n"
      "rounds, so it counts only when it is whole.\n"
      "Calls are made from this machine: run it where a requester would run. Puts a corpus of\n"
      "80 to 330 MB on one holder, and 2.4 MB on each, and drops it again, also when "
      "interrupted.\n"
      "A killed one leaves it: ckvctl corpus drop trial-...");
  characterize->add_option("--dir", command->folder, "Folder of the results; made if need be")
      ->required()
      ->type_name("DIR");
  characterize->add_flag("--quick", command->quick, "Fewer sizes and runs: under 2 minutes");
  AddFabrics(*characterize, *command);
  characterize->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunCharacterize(ctl, *command); }; });
}

}  // namespace ckv::ctl
