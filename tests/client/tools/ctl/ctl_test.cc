// Goal: what ckvctl does before and after it contacts a fleet: reads ordinals, files and command
// lines, draws progress, prints tables and JSON.
// Method: each part on its own, and RunCtl in this process against an address where no process
// listens.

#include "client/tools/ctl/ctl.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "attention/bf16.h"
#include "client/tools/ctl/chunk_range.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "client/tools/ctl/output.h"
#include "client/tools/ctl/progress.h"
#include "client/tools/ctl/query/agents.h"
#include "client/tools/ctl/query/alternatives.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "store/formats/import.h"
#include "store/formats/safetensors.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

using test::TempPath;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ChunkRanges, ListsOrdinalsInTheOrderGiven) {
  EXPECT_THAT(*ParseChunkRanges("", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*ParseChunkRanges("2", 3), ElementsAre(2));
  EXPECT_THAT(*ParseChunkRanges("0-2", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*ParseChunkRanges("5,0-2", 6), ElementsAre(5, 0, 1, 2));
  EXPECT_TRUE(ParseChunkRanges("", 0)->empty());
}

TEST(ChunkRanges, RefusesWhatIsNoRange) {
  for (const char* text : {"a", "1-", "-1", "2-1", "1,,2", "1,", ",1", "1-2-3", "1 2", "3", "0-3",
                           "1,0-2", "99999999999", "0x1"}) {
    const auto ordinals = ParseChunkRanges(text, 3);
    EXPECT_EQ(ordinals.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(ordinals.status().message()), HasSubstr(text));
  }
}

TEST(ChunkRanges, ARunHasNoGaps) {
  EXPECT_EQ(AsRun({2, 3, 4})->begin, 2u);
  EXPECT_EQ(AsRun({2, 3, 4})->end, 5u);
  EXPECT_EQ(AsRun({})->end, 0u);
  EXPECT_FALSE(AsRun({0, 2}).has_value());
  EXPECT_FALSE(AsRun({1, 0}).has_value());
  std::vector<uint32_t> ends;
  for (const ChunkRun run : AsRuns({4, 5, 0, 2, 3})) ends.insert(ends.end(), {run.begin, run.end});
  EXPECT_THAT(ends, ElementsAre(4, 6, 0, 1, 2, 4));
}

TEST(Output, TableAlignsAndHidesControlCharacters) {
  Table table({{"NAME"}, {"COUNT", true}, {"LAST"}});
  EXPECT_EQ(table.Render(), "");
  table.AddRow({"a", "10", "x"});
  table.AddRow({"long\x1b[2J", "2", "y"});
  EXPECT_EQ(table.Render(),
            "NAME      COUNT  LAST\n"
            "a            10  x\n"
            "long?[2J      2  y\n");
  EXPECT_EQ(RenderFields({{"a", "1"}, {"long", "2\n"}}), "a:    1\nlong: 2?\n");
}

TEST(Output, NumbersHaveUnits) {
  EXPECT_EQ(FormatCount(1, "chunk"), "1 chunk");
  EXPECT_EQ(FormatCount(0, "chunk"), "0 chunks");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1u << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatRate(2048), "2.0 KiB/s");
  EXPECT_EQ(FormatDuration(std::chrono::microseconds(850)), "850 us");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(12)), "12 ms");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(3400)), "3.4 s");
  EXPECT_EQ(FormatDuration(std::chrono::seconds(125)), "2 min 05 s");
  EXPECT_EQ(FormatMicroseconds(0.8), "0.8 us");
  EXPECT_EQ(FormatMicroseconds(0.0461), "46.1 ns");
  EXPECT_EQ(FormatMicroseconds(0), "0.0 us");
  EXPECT_EQ(FormatMicroseconds(12345), "12.35 ms");
}

TEST(Output, JsonSurvivesBytesThatAreNotText) {
  const std::string text = RenderJson({{"name", std::string("a\xff"
                                                            "b")}});
  EXPECT_THAT(text, HasSubstr("\"name\""));
  EXPECT_TRUE(Json::accept(text));
}

TEST(Printable, FitsOneLineAndMovesNoCursor) {
  EXPECT_EQ(Printable("no holder\n  ckvctl status shows who is"),
            "no holder; ckvctl status shows who is");
  EXPECT_EQ(Printable("a\nb\x1b[2J\x7f"), "a?b?[2J?");
  // U+009B is ESC [ in one, and U+00E9 a letter.
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2J\xc3\xa9\xc2"),
            "a?2J\xc3\xa9\xc2");
}

// Many texts contain names and reasons that a peer sent.
TEST(Printing, MovesNoCursor) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  ctl.Print("a\x1b[2J\n  b\r\n", {});
  EXPECT_EQ(out.str(), "a?[2J\n  b?\n");
  ctl.Note("warning: \x1b[2J\n  hint");
  EXPECT_EQ(err.str(), "warning: ?[2J\n  hint\n");
}

TEST(ProgressBar, ShowsAmountRateAndRest) {
  ProgressState state{"put", "tokens", 50, 200, std::chrono::seconds(5)};
  EXPECT_EQ(RenderProgress(state, 0), "put  50/200 tokens  25 %  10 tokens/s  15.0 s left");
  EXPECT_EQ(RenderProgress(state, 120).substr(0, 29), "[######..................] pu");
  state.done = 200;
  EXPECT_EQ(RenderProgress(state, 0), "put  200/200 tokens  100 %  40 tokens/s  in 5.0 s");
  EXPECT_EQ(RenderProgress({"put", "B", 0, 0, Duration(0)}, 0), "put  0 B/0 B  100 %");
  // Half of the units is a quarter of the work.
  state = {"prefill", "tokens", 100, 200, std::chrono::seconds(5), /*quadratic=*/true};
  EXPECT_EQ(RenderProgress(state, 0), "prefill  100/200 tokens  50 %  20 tokens/s  15.0 s left");
}

// Skipped work does not count for the speed of the rest.
TEST(ProgressBar, CountsSkippedItemsAsNeitherDoneNorDue) {
  ManualClock clock;
  std::ostringstream out;
  {
    Progress progress(&clock, &out, -1, "put", "B", 4096, /*quadratic=*/false);
    progress.Skip(2048);
    progress.Advance(1024);
    clock.Advance(Progress::kPlainPeriod);
    progress.Skip(512);
    progress.Advance(512);
  }
  EXPECT_EQ(out.str(),
            "put  1.0 KiB/1.5 KiB  66 %  341 B/s  1.5 s left\n"
            "put  1.5 KiB/1.5 KiB  100 %  512 B/s  in 3.0 s\n");
}

TEST(ProgressBar, DrawsPlainLinesEveryFewSecondsAndTheEnd) {
  ManualClock clock;
  std::ostringstream out;
  {
    Progress progress(&clock, &out, -1, "prefill", "tokens", 100, /*quadratic=*/false);
    progress.Advance(10);
    clock.Advance(Progress::kPlainPeriod);
    progress.Advance(20);
    progress.Advance(30);
    clock.Advance(std::chrono::seconds(1));
    progress.Advance(40);
  }
  EXPECT_EQ(out.str(),
            "prefill  30/100 tokens  30 %  10 tokens/s  7.0 s left\n"
            "prefill  100/100 tokens  100 %  25 tokens/s  in 4.0 s\n");
}

TEST(TensorFiles, QueriesAreRoundedToNearestEven) {
  const std::string path = TempPath("q32.safetensors");
  const std::vector<float> values = {1.0f, 1.00390625f, -1.01171875f, 3.14159f};
  const TensorToWrite tensor = {"q", TensorDtype::kF32, {2, 2}, std::as_bytes(std::span(values))};
  ASSERT_TRUE(WriteSafetensors(path, {}, {&tensor, 1}).ok());
  const auto queries = ReadQueries(path, 2);
  ASSERT_TRUE(queries.ok()) << queries.status();
  EXPECT_EQ(queries->rows, 2u);
  // 1 + 2^-8 is halfway between two bf16 values and rounds to the even one, 1. -(1 + 3 x 2^-8)
  // rounds to -(1 + 2^-6).
  EXPECT_EQ(queries->values[1], Bf16FromFloat(1.0f));
  EXPECT_EQ(queries->values[2], Bf16FromFloat(-1.015625f));
}

TEST(TensorFiles, RefusalsNameFileTensorAndShape) {
  const std::string path = TempPath("bad_q.safetensors");
  const std::vector<float> values(6, 1.0f);
  const TensorToWrite tensor = {"q", TensorDtype::kF32, {2, 3}, std::as_bytes(std::span(values))};
  ASSERT_TRUE(WriteSafetensors(path, {}, {&tensor, 1}).ok());
  const absl::Status wrong = ReadQueries(path, 4).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(wrong.message()),
      testing::AllOf(HasSubstr(path), HasSubstr("'q'"), HasSubstr("[2, 3]"), HasSubstr("[M, 4]")));
  EXPECT_EQ(ReadSelection(path, 2, 5).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadQueries(TempPath("absent"), 4).status().code(), absl::StatusCode::kNotFound);
}

TEST(TensorFiles, SelectionsStayInsideTheChosenRows) {
  const std::string path = TempPath("idx.safetensors");
  const std::vector<int32_t> indices = {0, -1, 4, 2};
  const TensorToWrite tensor = {
      "indices", TensorDtype::kI32, {2, 2}, std::as_bytes(std::span(indices))};
  ASSERT_TRUE(WriteSafetensors(path, {}, {&tensor, 1}).ok());
  const auto selection = ReadSelection(path, 2, 5);
  ASSERT_TRUE(selection.ok()) << selection.status();
  EXPECT_EQ(selection->k, 2u);
  EXPECT_EQ(selection->indices, indices);
  EXPECT_THAT(std::string(ReadSelection(path, 2, 4).status().message()), HasSubstr("[1, 0] is 4"));
  EXPECT_EQ(ReadSelection(path, 3, 5).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorFiles, APartialIsWrittenWhole) {
  const std::string path = TempPath("partial.safetensors");
  PartialArrays partial{2, 3, {1, 2, 3, 4, 5, 6}, {0.5f, -INFINITY}, {2, 0}};
  ASSERT_TRUE(WritePartial(path, partial, {{"corpus", "c"}}).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto o = file->Tensor("o");
  ASSERT_TRUE(o.ok());
  EXPECT_EQ(o->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(o->data, std::as_bytes(std::span(partial.o)).first(24)));
  EXPECT_EQ(file->metadata().at("corpus"), "c");
}

TEST(TensorFiles, ARowFileOfAnyGeometryReadsBack) {
  Geometry geometry;
  geometry.model = "test/rows";
  geometry.revision = "1";
  geometry.layers = 1;
  geometry.d_qk = 24;
  geometry.d_v = 16;
  geometry.d_rope = 8;
  geometry.softmax_scale = 0.1f;
  std::vector<Geometry> geometries(4, geometry);
  geometries[1].rope.style = RopeStyle::kHalfSplit;
  geometries[1].rope.theta = 1e6 / 3;
  geometries[2].rope.yarn = YarnParams{40, 4096, 32.5, 1, 0.707, 1.0 / 3};
  geometries[3].d_rope = 0;
  geometries[3].d_v = 24;
  geometries[3].rope.style = RopeStyle::kNone;
  const std::vector<uint16_t> rows(2 * 24);
  const std::vector<int32_t> ids = {5, 7};
  for (const Geometry& expected : geometries) {
    const std::string path = TempPath("rows.safetensors");
    const TensorToWrite tensors[] = {
        {"layers.0.ckv", TensorDtype::kBf16, {2, 24}, std::as_bytes(std::span(rows))},
        {"token_ids", TensorDtype::kI32, {2}, std::as_bytes(std::span(ids))}};
    ASSERT_TRUE(WriteSafetensors(path, RowFileMetadata(expected, 9), tensors).ok());
    const auto file = RowFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(DescribeDifference(file->geometry(), expected), "");
    EXPECT_EQ(file->geometry(), expected);
    EXPECT_EQ(file->base_position(), 9u);
  }
}

TEST(TensorFiles, FindsOutEarlyThatAnOutputCannotBeWritten) {
  EXPECT_TRUE(CheckOutput(TempPath("unwritten")).ok());
  EXPECT_FALSE(std::filesystem::exists(TempPath("unwritten")));
  for (const std::string& path : {TempPath("absent/out"), testing::TempDir()}) {
    const absl::Status status = CheckOutput(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("--out")));
  }
}

// A requester's answer where fetch costs 100 us once and 1 us a step, and route 5 us a step.
v1::ExplainReply Explained(const char* choice, uint32_t steps) {
  v1::ExplainReply reply;
  reply.set_choice(choice);
  const auto add = [&reply](const char* name, double total_us) {
    v1::PrimitiveCost* cost = reply.add_costs();
    cost->set_primitive(name);
    cost->set_offered(true);
    cost->set_total_us(total_us);
    return cost;
  };
  // A route's transfer is paid every step.
  v1::CostTerm* transfer = add("route", 5.0 * steps)->add_terms();
  transfer->set_name("transfer");
  transfer->set_microseconds(5.0 * steps);
  transfer = add("fetch", 100 + 1.0 * steps)->add_terms();
  transfer->set_name("transfer");
  transfer->set_microseconds(100);
  v1::PrimitiveCost* local = add("local", 0);
  local->set_offered(false);
  local->set_reason("no engine");
  return reply;
}

TEST(Explain, ShowsFromWhichInputOnEachAlternativeWins) {
  EXPECT_THAT(DescribeAlternatives(Explained("route", 1), 1, /*selected=*/false),
              ElementsAre("fetch takes 96.0 us longer than route over 1 step; it would be faster "
                          "from 26 steps on.",
                          "local is not offered: no engine."));
  // At 25 steps both take 125 us.
  EXPECT_THAT(DescribeAlternatives(Explained("fetch", 30), 30, /*selected=*/false),
              ElementsAre("route takes 20.0 us longer than fetch over 30 steps; it would be faster "
                          "up to 24 steps.",
                          "local is not offered: no engine."));
  // A selection is fetched again at every step, so a fetch never pays off.
  EXPECT_THAT(DescribeAlternatives(Explained("route", 1), 1, /*selected=*/true)[0],
              HasSubstr("at no number of steps"));
}

TEST(Agents, PromptsDifferAndFollowAFile) {
  const auto prompts = MakePrompts("", 20);
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ(std::set<Prompt>(prompts->begin(), prompts->end()).size(), 20u);
  const std::string path = TempPath("prompts");
  WriteText(path, "one\n\ntwo\n");
  EXPECT_THAT(*MakePrompts(path, 3),
              ElementsAre(Prompt{'o', 'n', 'e'}, Prompt{'t', 'w', 'o'}, Prompt{'o', 'n', 'e'}));
  EXPECT_EQ(MakePrompts(TempPath("absent"), 1).status().code(), absl::StatusCode::kNotFound);
  WriteText(path, "\n\n");
  EXPECT_EQ(MakePrompts(path, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Agents, TheFirstDifferenceCountsWithItsMargin) {
  const std::vector<GreedyChoice> alone = {{1, 2.0f}, {2, 0.01f}, {3, 1.0f}};
  std::vector<GreedyChoice> routed = alone;
  EXPECT_FALSE(FirstDifference(routed, alone).has_value());
  EXPECT_EQ(TokensHash(routed), TokensHash(alone));
  routed[1].token = 9;
  const auto difference = FirstDifference(routed, alone);
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->token, 1u);
  EXPECT_EQ(difference->margin, 0.01f);
  EXPECT_NE(TokensHash(routed), TokensHash(alone));

  AgentRun run;
  EXPECT_EQ(MarginMax(run), 0);
  run.f32 = false;
  EXPECT_GT(MarginMax(run), 0.05f);
}

struct Outcome {
  int code;
  std::string out, err;
};

Outcome RunWith(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Ctl ctl;
  ctl.out = &out;
  ctl.err = &err;
  // No process listens on port 1, so the call fails at once.
  ctl.fleet.requester = "127.0.0.1:1";
  ctl.fleet.directory = "127.0.0.1:1";
  const int code = RunCtl(ctl, std::move(arguments));
  return {code, out.str(), err.str()};
}

TEST(RunCtl, HelpAndVersionAreNoErrors) {
  EXPECT_EQ(RunWith({"--help"}).code, 0);
  EXPECT_THAT(RunWith({"--help"}).out, HasSubstr("Exit codes:"));
  EXPECT_THAT(RunWith({"corpus", "load", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_EQ(RunWith({"--version"}).out, "ckvctl 0.1.0\n");
}

TEST(RunCtl, ACommandLineThatDoesNotParseIsCodeTwo) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"corpus"},
                                             {"nonsense"},
                                             {"status", "--nonsense"},
                                             {"status", "-o", "xml"},
                                             {"corpus", "load", "x"},
                                             {"corpus", "load", "x", "f", "--replicas", "0"},
                                             {"agents", "run", "--corpus", "c", "--count", "0"},
                                             {"status", "-o", "1"},
                                             {"status", "--requester", "garbage"},
                                             {"status", "--directory", "h:0"},
                                             {"agents", "run", "--corpus", "c", "--wire", "1"},
                                             {"agents", "run", "--corpus", "c", "--timeout", "9"},
                                             {"agents", "choose", "--corpus", "c", "--text", "t"},
                                             {"explain", "--corpus", "c", "--chunks", ""}}) {
    const Outcome outcome = RunWith(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err, "");
  }
}

TEST(RunCtl, RefusalsAndHelpNameWhatIsTaken) {
  EXPECT_THAT(RunWith({"status", "--requester", "garbage"}).err,
              HasSubstr("--requester: 'garbage' is not host:port"));
  EXPECT_THAT(RunWith({"explane"}).err, HasSubstr("not known here: explane"));
  EXPECT_THAT(RunWith({"explain", "--korpus", "gpl"}).err,
              AllOf(HasSubstr("--korpus"), HasSubstr("--corpus is required")));
  EXPECT_THAT(RunWith({"explain"}).err, Not(HasSubstr("not known")));
  const std::vector<std::string> attend = {"attend", "--corpus", "c", "--queries",
                                           "q",      "--out",    "o", "--layer"};
  const auto with = [&attend](std::vector<std::string> more) {
    more.insert(more.begin(), attend.begin(), attend.end());
    return RunWith(more).err;
  };
  EXPECT_THAT(with({"-1"}), HasSubstr("--layer: '-1' is not a whole number"));
  EXPECT_THAT(with({"0", "--chunks", ""}), HasSubstr("--chunks: empty; leave the option out"));
  EXPECT_THAT(with({"0", "--wire", "1"}), HasSubstr("--wire: '1' is not one of bf16|f32"));

  for (const std::vector<std::string>& verb :
       std::vector<std::vector<std::string>>{{"attend"}, {"agents", "run"}, {"fetch"}}) {
    std::vector<std::string> arguments = verb;
    arguments.emplace_back("--help");
    const std::string help = RunWith(arguments).out;
    EXPECT_THAT(help, AllOf(HasSubstr("--timeout TIME"), Not(HasSubstr("->")),
                            Not(HasSubstr(" in [")), Not(HasSubstr("{false}"))));
    if (verb[0] != "fetch") {
      EXPECT_THAT(help, AllOf(HasSubstr("--wire bf16|f32"), HasSubstr("(default: ")));
    }
  }
  EXPECT_THAT(RunWith({"--help"}).out,
              AllOf(HasSubstr("--output table|json"), HasSubstr("(default:")));
}

// Likewise, the options of a load are checked before anything else.
TEST(RunCtl, ALoadThatMakesNoSenseIsCodeTwo) {
  for (const auto& [arguments, error] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"a.npy", "b.npy"}, "loaded by itself"},
           {{"a.jsonl", "b.safetensors"}, "files of one kind"},
           {{"a", "--text", "--jsonl"}, "one or the other"},
           {{"a", "b", "--text"}, "--cut document"},
           {{"a", "--chunk-max", "9"}, "--cut content"},
           {{"a", "--cut", "document", "--chunk-tokens", "9"}, "--chunk-max"},
           {{"a", "--cut", "content", "--chunk-tokens", "1000"}, "power of two"},
           {{"a", "--cut", "words"}, "fixed|document|content"},
           {{"a", "--dtype", "f16"}, "are for a .npy file"},
           {{"a.npy", "--dtype", "f64"}, "bf16|f16|f32|fp8_ds_mla"}}) {
    std::vector<std::string> all = {"corpus", "load", "x"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = RunWith(all);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(error));
  }
}

// No process listens at RunWith's addresses, so these commands are refused before anything is sent.
TEST(RunCtl, StartsNothingThatCannotEndWell) {
  const Outcome load = RunWith({"corpus", "load", "bad name", "text", "--text"});
  EXPECT_EQ(load.code, 2) << load.err;
  EXPECT_THAT(load.err, HasSubstr("NAME"));
  const std::string out = TempPath("absent/out");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"fetch", "--corpus", "c", "--out", out},
           {"calibrate", "--reference-engine", "--profile", out},
           {"attend", "--corpus", "c", "--layer", "0", "--queries", "q", "--out", out}}) {
    const Outcome outcome = RunWith(arguments);
    EXPECT_EQ(outcome.code, 7) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(out));
  }
}

TEST(RunCtl, HelpDescribesAFileOfRows) {
  EXPECT_THAT(RunWith({"corpus", "load", "--help"}).out,
              AllOf(HasSubstr("token_ids"), HasSubstr("layers.0.ckv"), HasSubstr("rope_scaling"),
                    HasSubstr("base_position"), HasSubstr("--cut fixed|document|content"),
                    HasSubstr("--standalone"), HasSubstr(".npy"), HasSubstr(".jsonl")));
}

TEST(RunCtl, AnUnreachableServerIsExitCode4WithARemedy) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"status"}, {"corpus", "list", "-o", "json"}, {"chunk", "locate", "abcdef"}}) {
    const Outcome outcome = RunWith(arguments);
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("CKV_DIRECTORY"));
  }
}

}  // namespace
}  // namespace ckv::ctl
