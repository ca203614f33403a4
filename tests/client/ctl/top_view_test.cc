// Goal: top shows what happened between two samples, in 80 columns and in more, and what is wrong.
// Method: two samples made by hand, of members that work, that restarted, and that are silent.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ctl/top/top_text.h"
#include "client/ctl/top/top_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Le;
using testing::Not;
using testing::ResultOf;
using testing::StartsWith;

constexpr auto kMs = std::chrono::milliseconds(1);

Member MakeMember(const std::string& name, MemberRole role, uint64_t epoch = 1) {
  Member member;
  member.id = {name};
  member.role = role;
  member.control_address = "10.0.0.1:7401";
  member.epoch.value = epoch;
  return member;
}

LatencyCounts CountsOfMs(const std::vector<int>& milliseconds) {
  LatencyCounts counts;
  for (const int ms : milliseconds) counts.Add(ms * kMs);
  return counts;
}

MemberReport MakeHolder(const std::string& name, uint64_t requests, double busy_s,
                        const LatencyCounts& wait, uint64_t epoch = 1) {
  MemberReport holder = {MakeMember(name, MemberRole::kHolder, epoch), absl::OkStatus(), {}};
  holder.stats.set_request_count(requests);
  holder.stats.set_compute_ns(static_cast<uint64_t>(busy_s * 1e9));
  holder.stats.set_used_bytes(1 << 20);
  holder.stats.set_capacity_bytes(4 << 20);
  holder.stats.set_waiting_count(3);
  holder.stats.set_kernel_target("AVX3");
  *holder.stats.add_latency() = ToProto("wait", wait);
  return holder;
}

MemberReport MakeRequester(const std::string& name, const LatencyCounts& route, uint64_t docs,
                           uint64_t decisions) {
  MemberReport requester = {MakeMember(name, MemberRole::kRequester), absl::OkStatus(), {}};
  v1::DescribeReply& d = requester.description;
  *d.add_latency() = ToProto("route", route);
  v1::DescribeReply::CorpusCalls& hot = *d.add_hottest();
  hot.set_name("docs");
  hot.set_call_count(docs);
  d.add_hottest()->set_call_count(7);  // of tenants
  v1::DescribeReply::Near::Decisions& made = *d.mutable_near()->add_decisions();
  made.set_primitive("route");
  made.set_reason("below_threshold");
  made.set_count(decisions);
  return requester;
}

TopSample SampleAt(Duration at, std::vector<MemberReport> members) {
  TopSample sample;
  sample.at = Instant{} + at;
  sample.directory = "10.0.0.9:7400";
  sample.members = std::move(members);
  return sample;
}

// Two seconds of a fleet: h1 works, h2 restarted, h3 is silent, h4 is gone.
TopView Worked() {
  const TopSample before =
      SampleAt(std::chrono::seconds(10),
               {MakeHolder("h1", 100, 1, CountsOfMs({500, 500})), MakeHolder("h2", 900, 9, {}, 1),
                MakeHolder("h3", 5, 0, {}), MakeRequester("r", CountsOfMs({1000}), 10, 4)});
  TopSample now = SampleAt(std::chrono::seconds(12),
                           {MakeHolder("h1", 150, 2.5, CountsOfMs({500, 500, 1, 1, 1, 1})),
                            MakeHolder("h2", 2, 0, {}, 2), MakeHolder("h3", 0, 0, {}),
                            MakeRequester("r", CountsOfMs({1000, 4, 4}), 30, 5)});
  now.members[2].status = absl::UnavailableError("holder h3: no");
  now.findings = {
      {FindingCode::kMemberUnreachable, Severity::kBroken, "holder h3", "does not answer", "look"}};
  return MakeTopView(&before, now);
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

std::string LineOf(const std::string& text, const std::string& begin) {
  for (const std::string& line : LinesOf(text))
    if (line.starts_with(begin)) return line;
  return "no line begins with " + begin;
}

auto FitsIn(size_t columns) {
  return Each(ResultOf([](const std::string& line) { return line.size(); }, Le(columns)));
}

TEST(TopView, RatesCoverTheTimeBetweenSamples) {
  const TopView view = Worked();
  EXPECT_EQ(view.seconds, 2);
  ASSERT_EQ(view.holders.size(), 2u);  // the silent one is a problem
  const TopHolder& h1 = view.holders[0];
  EXPECT_EQ(h1.name, "h1");  // the busier one
  EXPECT_EQ(h1.requests, 25);
  EXPECT_EQ(h1.busy, .75);
  EXPECT_EQ(h1.wait.total(), 4u);
  EXPECT_LE(h1.wait.Quantile(.99), 2 * kMs) << "not those of before";
  ASSERT_EQ(view.requesters.size(), 1u);
  EXPECT_EQ(view.requesters[0].route, 1);
  EXPECT_LE(view.requesters[0].attends.Quantile(.99), 5 * kMs);
  ASSERT_EQ(view.corpora.size(), 2u);
  EXPECT_EQ(view.corpora[0].name, "docs");
  EXPECT_EQ(view.corpora[0].calls, 10);
  EXPECT_EQ(view.corpora[1].calls, 0);
  ASSERT_EQ(view.decisions.size(), 1u);
  EXPECT_EQ(view.decisions[0].rate, .5);
}

TEST(TopView, ANewIncarnationHasNoRateYet) {
  const TopHolder h2 = Worked().holders[1];
  EXPECT_EQ(h2.name, "h2");
  EXPECT_EQ(h2.requests, std::nullopt);
}

// A requester reports 64 corpora, so one that was not among them may have been called before, too.
TEST(TopView, ACorpusThatEntersAFullListHasNoRateYet) {
  for (const bool full : {true, false}) {
    MemberReport then = MakeRequester("r", {}, 0, 0);
    then.description.clear_hottest();
    for (int i = 0; i < (full ? 64 : 63); ++i) {
      v1::DescribeReply::CorpusCalls& calls = *then.description.add_hottest();
      calls.set_name(absl::StrCat("c", i));
      calls.set_call_count(100);
    }
    then.description.add_hottest()->set_call_count(7);  // of tenants
    MemberReport later = then;
    later.description.mutable_hottest(0)->set_call_count(120);
    later.description.mutable_hottest(1)->set_name("docs");
    later.description.mutable_hottest(1)->set_call_count(1000);
    const TopSample before = SampleAt(std::chrono::seconds(10), {then});
    const TopView view = MakeTopView(&before, SampleAt(std::chrono::seconds(12), {later}));
    const auto& corpora = view.corpora;
    const auto docs = std::find_if(corpora.begin(), corpora.end(),
                                   [](const TopCorpus& corpus) { return corpus.name == "docs"; });
    ASSERT_NE(docs, corpora.end());
    EXPECT_EQ(docs->calls, full ? PerSecond() : PerSecond(500));
    EXPECT_EQ(docs->query_rows, full ? PerSecond() : PerSecond(0));
    EXPECT_EQ(docs->call_count, 1000u);
    EXPECT_EQ(corpora.front().name, full ? "c0" : "docs");
  }
}

// In the previous sample, holder h1 is silent. h2 and the requester start after it.
TEST(TopView, TimesOfALifeAreNotThoseSinceTheLastLook) {
  TopSample before =
      SampleAt(std::chrono::seconds(10), {MakeHolder("h0", 1, 0, CountsOfMs({900})),
                                          MakeHolder("h1", 1, 0, CountsOfMs({900, 900})),
                                          MakeHolder("h2", 1, 0, CountsOfMs({900}), 1)});
  before.members[1].status = absl::UnavailableError("h1: no");
  const TopSample now =
      SampleAt(std::chrono::seconds(12), {MakeHolder("h0", 2, 0, CountsOfMs({900, 1})),
                                          MakeHolder("h1", 2, 0, CountsOfMs({900, 900, 900})),
                                          MakeHolder("h2", 2, 0, CountsOfMs({900}), 2),
                                          MakeRequester("r", CountsOfMs({900}), 1, 1)});
  const TopView view = MakeTopView(&before, now);
  for (const TopHolder& holder : view.holders)
    EXPECT_EQ(holder.wait.total(), holder.name == "h0" ? 1u : 0u) << holder.name;
  EXPECT_EQ(view.requesters[0].attends.total(), 0u);
  for (const TopTime& time : view.times)
    EXPECT_EQ(time.counts.total(), time.of == "wait" ? 1u : 0u) << time.of;
}

TEST(TopView, OneSampleShowsTimesSinceTheStart) {
  const TopSample only =
      SampleAt(std::chrono::seconds(5), {MakeHolder("h", 9, 1, CountsOfMs({2}))});
  const TopView view = MakeTopView(nullptr, only);
  EXPECT_EQ(view.seconds, std::nullopt);
  EXPECT_EQ(view.holders[0].requests, std::nullopt);
  EXPECT_EQ(view.holders[0].wait.total(), 1u);
  EXPECT_THAT(TopText(view, {}), HasSubstr("TIMES SINCE THE START"));
}

TEST(TopView, ReportsFaults) {
  TopSample now = SampleAt(std::chrono::seconds(1), {MakeHolder("h", 1, 0, {})});
  now.findings = {
      {FindingCode::kDirectoryUnreachable, Severity::kBroken, "directory 10.0.0.9:7400",
       "no\x1b[2J answer", "start it"},
      {FindingCode::kDiskLow, Severity::kWarning, "holder h", "has 1 MiB left", "mend"}};
  const std::string text = TopText(MakeTopView(nullptr, now), {});
  EXPECT_THAT(text, AllOf(HasSubstr("! directory 10.0.0.9:7400 no?[2J answer\n"),
                          HasSubstr("! holder h has 1 MiB left\n")));
  EXPECT_THAT(TopText(Worked(), {}), HasSubstr("! holder h3 does not answer\n"));
}

TEST(TopText, EightyColumnsShowTheMainFields) {
  const std::string text = TopText(Worked(), {}, "every 2s, q quits");
  EXPECT_THAT(LinesOf(text), FitsIn(80));
  EXPECT_THAT(text, StartsWith("directory 10.0.0.9:7400: 2 holders, 1 requester"));
  EXPECT_THAT(LinesOf(text)[0], testing::EndsWith("every 2s, q quits"));
  EXPECT_EQ(LineOf(text, "HOLDER"),
            "HOLDER    REQ/S   ROWS/S   BUSY  WAITING  WAIT P99  KERN P99   USED");
  EXPECT_THAT(LineOf(text, "h1"),
              AllOf(HasSubstr("  25 "), HasSubstr(" 75 % "), HasSubstr(" 25 %")));
  EXPECT_THAT(LineOf(text, "h2"), HasSubstr("  -  "));
  EXPECT_THAT(LineOf(text, "route    b"), HasSubstr("below_threshold"));
  EXPECT_THAT(LineOf(text, "(of tenants)"), HasSubstr(" 7"));
  EXPECT_THAT(LineOf(text, "wait"), HasSubstr("#"));
  EXPECT_THAT(text, Not(HasSubstr("AVX3")));
}

TEST(TopText, WiderTerminalsShowMore) {
  const std::string text = TopText(Worked(), {.columns = 200});
  EXPECT_THAT(LinesOf(text), FitsIn(200));
  EXPECT_THAT(LineOf(text, "h1"), AllOf(HasSubstr("AVX3"), HasSubstr("10.0.0.1:7401")));
}

TEST(TopText, NoTextOfAMemberMovesTheCursor) {
  const std::string bad = "\x1b[2J\n";
  TopView view = Worked();
  view.directory += bad;
  view.holders[0].name += bad;
  view.holders[0].kernel_target = "A" + bad;
  view.holders[0].address = "B" + bad;
  view.requesters[0].address = bad;
  view.corpora[0].name += bad;
  view.times[0].of += bad;
  view.decisions[0].primitive += bad;
  view.decisions[0].reason = "C" + bad;
  view.problems.push_back({"code", "D" + bad, "E" + bad});
  const std::string text = TopText(view, {.columns = 200});
  EXPECT_THAT(text, AllOf(Not(HasSubstr("\x1b")), HasSubstr("A?[2J?"), HasSubstr("B?[2J?"),
                          HasSubstr("C?[2J?"), HasSubstr("! D?[2J? E?[2J?\n")));
  EXPECT_EQ(LinesOf(text).size(), LinesOf(TopText(Worked(), {.columns = 200})).size() + 1);
}

TEST(TopText, FewRowsKeepEachTable) {
  TopView view = Worked();
  for (int i = 0; i < 50; ++i) view.corpora.push_back({absl::StrCat("c", i), 0, 0, 1});
  view.holders[0].name = std::string(128, 'x');
  const std::string text = TopText(view, {.columns = 80, .rows = 30});
  EXPECT_LE(LinesOf(text).size(), 30u);
  EXPECT_THAT(LinesOf(text), FitsIn(80));
  EXPECT_THAT(text, AllOf(HasSubstr("docs"), HasSubstr("more\n"), HasSubstr("REQUESTER"),
                          HasSubstr("xxx..  "), HasSubstr("DECIDED")));
  for (const size_t rows : {1, 2, 5, 12})
    EXPECT_LE(LinesOf(TopText(view, {.columns = 20, .rows = rows})).size(), rows);
  EXPECT_THAT(LinesOf(TopText(view, {.columns = 20, .rows = 12})), FitsIn(20));
}

TEST(TopText, AFleetWithoutMembers) {
  const TopView view = MakeTopView(nullptr, SampleAt(Duration(0), {}));
  EXPECT_EQ(TopText(view, {}), "directory 10.0.0.9:7400: 0 holders, 0 requesters\n");
}

TEST(TopJson, UnknownIsNull) {
  const Json json = TopJson(Worked());
  EXPECT_EQ(json["seconds"], 2);
  EXPECT_EQ(json["holders"][0]["requests_per_s"], 25);
  EXPECT_EQ(json["holders"][0]["busy"], .75);
  EXPECT_TRUE(json["holders"][0]["kernel_p99_us"].is_null());
  EXPECT_TRUE(json["holders"][1]["requests_per_s"].is_null());
  EXPECT_EQ(json["findings"][0]["code"], "member-unreachable");
  EXPECT_EQ(json["findings"][0]["what"], "holder h3");
  EXPECT_TRUE(json["corpora"][1]["name"].is_null());
  EXPECT_EQ(json["decisions"][0]["per_s"], .5);
  EXPECT_GT(json["times"][0]["p99_us"], 2000);
}

}  // namespace
}  // namespace ckv::ctl
