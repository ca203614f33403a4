// ckvctl calibrate, ckvctl characterize: the costs of routing, fetching and recomputing on this
// fleet. Both begin with PrepareTarget (measured_target.h). RunCalibrate then measures the
// constants and writes the profile. RunCharacterize runs the sweeps of client/tools/characterize,
// appends samples to a file that an interrupted run continues, and writes findings and the report.

#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cost/profile_file.h"
#include "client/tools/characterize/answer.h"
#include "client/tools/characterize/findings.h"
#include "client/tools/characterize/run.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/query/figures.h"
#include "client/tools/ctl/query/measured_target.h"
#include "client/tools/ctl/query/profile_option.h"
#include "client/tools/ctl/result_folder.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {
namespace {

struct CharacterizeCommand {
  std::string folder;
  // The profile that calibrate makes, or whose constants characterize takes.
  std::string profile;
  MeasuredOptions measured;
};

// The longest chunk: 64 Ki tokens of DeepSeek-V3 are 4.6 GB.
constexpr uint32_t kChunkTokensMax = 1 << 16;

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
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredTarget> setup,
                       PrepareTarget(ctl, command.measured));
  CKV_ASSIGN_OR_RETURN(const Profile profile,
                       CalibrateTarget(setup->target, setup->options, setup->subject, *ctl.clock));
  if (!command.profile.empty()) CKV_RETURN_IF_ERROR(WriteProfile(command.profile, profile));
  ctl.Print(ProfileText(profile), Json::parse(FormatProfile(profile)));
  return absl::OkStatus();
}

// Returns the folder's profile, if an earlier run of the same subject left one, so that samples and
// predictions use the same constants.
std::optional<Profile> KnownProfile(const MeasuredTarget& setup, const std::string& path) {
  auto known = ReadProfile(path);
  if (!known.ok() || known->subject != setup.subject) return std::nullopt;
  for (const CharacterizedLane& lane : setup.target.lanes) {
    if (known->Find(setup.trial->holders()[0].id.name, lane.fabric) == nullptr) return std::nullopt;
  }
  return *std::move(known);
}

// Returns the constants of --profile for the lanes that are measured.
absl::StatusOr<Profile> GivenProfile(const CharacterizeCommand& command,
                                     const MeasuredTarget& setup) {
  const Geometry& geometry = setup.target.corpus->geometry;
  CKV_ASSIGN_OR_RETURN(const auto read, LoadProfileFor(command.profile, geometry));
  Profile profile = *read;
  const std::string& holder = setup.trial->holders()[0].id.name;
  for (const CharacterizedLane& lane : setup.target.lanes) {
    if (profile.Find(holder, lane.fabric) != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has no constants of %s over %s: name its fabrics with --fabric, or calibrate again",
        command.profile, holder, lane.fabric));
  }
  profile.here = HereFor(profile, geometry);
  if (command.measured.prefill_us)
    profile.here.prefill_per_token_layer_us = *command.measured.prefill_us;
  return profile;
}

// Returns the constants that are not to be measured: those of --profile, or of the folder. Samples
// in the folder must be of the same constants.
absl::StatusOr<std::optional<Profile>> ProfileToUse(const CharacterizeCommand& command,
                                                    const MeasuredTarget& setup,
                                                    const std::string& path, bool has_samples) {
  if (command.profile.empty()) {
    std::optional<Profile> known = KnownProfile(setup, path);
    if (known || !has_samples) return known;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has samples, but %s is not of their run: use another --dir", command.folder, path));
  }
  CKV_ASSIGN_OR_RETURN(Profile given, GivenProfile(command, setup));
  const auto before = ReadProfile(path);
  if (has_samples && (!before.ok() || FormatProfile(*before) != FormatProfile(given))) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has samples of other constants than --profile: use another --dir", command.folder));
  }
  return given;
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
               {"BEYOND KERNEL", true},
               {"REGRET", true},
               {"RIGHT", true},
               {"SURELY", true}});
  const auto percent = [](double share) { return absl::StrFormat("%.1f %%", 100 * share); };
  const auto share_of = [&](double share, uint32_t count) -> std::string {
    return count == 0 ? "-" : absl::StrFormat("%s of %d", percent(share), count);
  };
  for (const FabricFindings& one : findings) {
    table.AddRow({one.fabric, percent(one.all.mape), percent(one.large.mape),
                  percent(one.beyond.mape), percent(one.regret),
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

// Samples of another model, or of rows in a processor cache and in none, must not be mixed.
std::string SamplesSubject(const MeasuredTarget& setup) {
  return absl::StrFormat("%s, %s of %d layers, %d query rows a token%s", setup.subject, setup.model,
                         setup.target.corpus->geometry.layers, setup.target.heads,
                         setup.target.push_out.empty() ? "" : ", rows in no cache");
}

std::string DateText() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc));
}

// Date, build, machine, runs and constants: what a reader needs to make the same again.
std::vector<std::pair<std::string, std::string>> Facts(const MeasuredTarget& setup,
                                                       const Profile& profile) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"date", DateText()},
      {"build", std::string(Version())},
      {"measured", setup.subject},
      {"model", absl::StrFormat("%s: %d layers, %d query rows a token", setup.model,
                                setup.target.corpus->geometry.layers, setup.target.heads)},
      {"prefill",
       profile.here.prefill_per_token_layer_us
           ? FormatMicroseconds(*profile.here.prefill_per_token_layer_us) + " a token and layer"
           : "not given, so recomputing is not offered (--prefill-us)"},
      {"machine", profile.kernel ? profile.kernel->signature : "not recorded"},
      {"runs", absl::StrFormat("%d rounds of the grid, or twice as many where they disagreed; bars "
                               "are standard errors of means",
                               setup.options.run_count)}};
  for (const LaneProfile& lane : profile.lanes) {
    facts.emplace_back(absl::StrFormat("%s over %s", lane.holder, lane.fabric),
                       absl::StrFormat("T_probe %s, BW %s, fetch BW %s",
                                       FormatMicroseconds(lane.constants.t_probe_us),
                                       FormatRate(lane.constants.bandwidth_bytes_per_s),
                                       FormatRate(lane.constants.fetch_bandwidth_bytes_per_s)));
  }
  return facts;
}

// Writes the report and prints the findings, which a disturbed run does not have.
absl::Status Report(const Ctl& ctl, const CharacterizeCommand& command, const MeasuredTarget& setup,
                    const Profile& profile, std::span<const Sample> samples, size_t known_count,
                    Duration took) {
  const Geometry& geometry = setup.target.corpus->geometry;
  const std::vector<FabricFindings> findings =
      FindingsOf(samples, geometry.layers, CharacterizedSteps(),
                 [&](const std::string& fabric, uint32_t rows, uint64_t tokens, uint32_t steps) {
                   return PredictChoice(profile, geometry, fabric, rows, tokens, steps);
                 });
  const std::vector<KernelCurve> kernels = KernelCurvesOf(profile);
  const std::string disturbed = DescribeDisturbances(DisturbancesOf(samples));
  const std::string answer = AnswerOf({samples, setup.model, geometry.layers, setup.target.heads});
  const FiguresInput input = {.answer = answer,
                              .disturbed = disturbed,
                              .facts = Facts(setup, profile),
                              .geometry = &geometry,
                              .heads = setup.target.heads,
                              .profile = &profile,
                              .findings = findings,
                              .kernels = kernels};
  CKV_ASSIGN_OR_RETURN(const bool drawn, DrawFigures(command.folder, input));
  const std::string report = command.folder + "/report.html";
  if (!drawn) ctl.Note(NotDrawnText(report, command.folder + "/figures.py"));
  const std::string said =
      disturbed.empty()
          ? answer + "\n\n" + FindingsText(findings)
          : "The machine was disturbed while it was measured, so there are no findings. " +
                disturbed + ".\nRun it again on an idle machine, with another --dir.\n";
  ctl.Print(said + "\n" + KernelsText(kernels) +
                absl::StrFormat("\n%d points, %d of them from before, in %s; %s%s/samples.csv, "
                                "%s/profile.json\n",
                                samples.size(), known_count, FormatDuration(took),
                                drawn ? report + ", " : "", command.folder, command.folder),
            {{"answer", disturbed.empty() ? Json(answer) : Json()},
             {"disturbed", disturbed.empty() ? Json() : Json(disturbed)},
             {"findings", disturbed.empty() ? FindingsJson(findings) : Json::array()},
             {"kernels", KernelsJson(kernels)},
             {"points", samples.size()},
             {"points_from_before", known_count},
             {"report", drawn ? Json(report) : Json()}});
  return absl::OkStatus();
}

absl::Status RunCharacterize(const Ctl& ctl, const CharacterizeCommand& command) {
  const Instant start = ctl.clock->Now();
  CKV_RETURN_IF_ERROR(MakeFolder(command.folder));
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredTarget> setup,
                       PrepareTarget(ctl, command.measured));
  CKV_ASSIGN_OR_RETURN(SampleFile file,
                       SampleFile::Open(command.folder + "/samples.csv", SamplesSubject(*setup)));
  const size_t known_count = file.samples().size();
  const std::string profile_path = command.folder + "/profile.json";
  Stages stages(ctl);
  const CharacterizeWatch watch = {
      .progress = [&](const char* stage, size_t done,
                      size_t total) { stages.Report(stage, done, total); },
      .calibrated = [&](const Profile& profile) { return WriteProfile(profile_path, profile); }};
  CKV_ASSIGN_OR_RETURN(const std::optional<Profile> known,
                       ProfileToUse(command, *setup, profile_path, known_count > 0));
  CKV_ASSIGN_OR_RETURN(
      const Profile profile,
      Characterize(setup->target, setup->options, setup->subject, known, file, *ctl.clock, watch));
  stages.End();
  return Report(ctl, command, *setup, profile, file.samples(), known_count,
                ctl.clock->Now() - start);
}

}  // namespace

void AddCharacterizeCommands(CLI::App& app, Ctl& ctl) {
  const auto calibration = std::make_shared<CharacterizeCommand>();
  calibration->measured.quick = true;
  CLI::App* calibrate = AddVerb(
      app, "calibrate", "Measure the constants of the cost model; takes some seconds",
      "  ckvctl calibrate\n  ckvctl calibrate --profile fleet.json --fabric tcp --prefill-us "
      "0.8\n\n"
      "Kernels and fetches are measured of one holder, the first by name; run it where the\n"
      "requester runs. Puts a corpus on that holder (2.6k tokens of all layers, and twice the\n"
      "processor's cache), and 2k tokens on each, and drops it again, also when interrupted. A\n"
      "killed one leaves it: ckvctl corpus drop trial-...");
  calibrate->add_option("--profile", calibration->profile, "Write the constants to this file")
      ->type_name("FILE");
  AddMeasuredOptions(*calibrate, calibration->measured);
  calibrate->callback([&ctl, calibration] {
    ctl.run = [&ctl, calibration] { return RunCalibrate(ctl, *calibration); };
  });

  const auto command = std::make_shared<CharacterizeCommand>();
  CLI::App* characterize = AddVerb(
      app, "characterize",
      "Measure route, fetch and local over sizes, and report against the model",
      "  ckvctl characterize --dir costs --quick\n"
      "  ckvctl characterize --dir v3 --geometry deepseek-v3 --prefill-us 0.8\n"
      "  ckvctl characterize --dir mine --geometry mine.json --heads 64 --fabric tcp\n"
      "  ckvctl characterize --dir other --geometry deepseek-v3 --profile costs/profile.json\n\n"
      "Writes DIR/report.html (plots, nothing from the network), DIR/samples.csv and\n"
      "DIR/profile.json. The plots take Debian's python3-matplotlib; DIR/figures.py draws them\n"
      "again. RIGHT is how often the model chose the best. Points at which another choice is\n"
      "within 10 % do not count. SURELY also leaves out points that differ by no more than the\n"
      "noise. A run that was interrupted continues where it stopped. The grid of routes, fetches\n"
      "and prefills is measured in passes, so it counts only when all are there. If repeats of "
      "kernels or routes differ by more\n"
      "than 1.5 x, the machine was disturbed: the findings are withheld.\n"
      "Calls are made from this machine: run it where a requester would run. Puts a corpus on one\n"
      "holder (2.6k tokens of all layers with --quick, else 8k, and twice the processor's cache),\n"
      "2k tokens on each, and drops it again, also when interrupted. A killed one leaves it:\n"
      "ckvctl corpus drop trial-...");
  characterize->add_option("--dir", command->folder, "Folder of the results; made if need be")
      ->required()
      ->type_name("DIR");
  characterize
      ->add_option("--mq", command->measured.query_rows,
                   "Query rows of routes, rising (default: 1 to 4096; with --quick 1 to 2048)")
      ->delimiter(',')
      ->check(InRange(1u, kAttendRowCountMax))
      ->type_name("LIST");
  characterize
      ->add_option("--tokens", command->measured.tokens,
                   "Tokens of chunks, rising (default: 64 to 4096; with --quick 64 to 2048)")
      ->delimiter(',')
      ->check(InRange(16u, kChunkTokensMax))
      ->type_name("LIST");
  AddProfileOption(*characterize, command->profile,
                   "Take the constants from this file of another model with the same row widths, "
                   "instead of measuring them: shows how well they predict this model");
  command->measured.has_sweeps = true;
  characterize->add_flag_callback(
      "--no-sweeps", [command] { command->measured.has_sweeps = false; },
      "Measure only routes, fetches and recomputing, over --mq and --tokens");
  characterize->add_flag("--quick", command->measured.quick,
                         "Fewer sizes and runs: about 2 minutes for V2-Lite");
  AddMeasuredOptions(*characterize, command->measured);
  characterize->callback(
      [&ctl, command] { ctl.run = [&ctl, command] { return RunCharacterize(ctl, *command); }; });
}

}  // namespace ckv::ctl
