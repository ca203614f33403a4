// Goal: one id names a request from the caller to the holder: in metadata, errors and logs.
// Method: a fleet of real processes; calls with a known traceparent, without one and with malformed
// ones succeed and fail; the logs of both sides are read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "proto/base/trace_context.h"
#include "tests/e2e/one_daemon.h"

namespace ckv {
namespace {

using test::After;
using test::Call;
using test::kStartTime;
using testing::HasSubstr;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";

class TraceTest : public testing::Test {
 protected:
  void SetUp() override { StartFleet({}); }

  void StartFleet(const std::vector<std::string>& more_of_requester) {
    const std::vector<std::string> all = {"--log-level=debug", "--log-format=json",
                                          "--fabrics=tcp"};
    const auto with = [&all](std::vector<std::string> more) {
      more.insert(more.end(), all.begin(), all.end());
      return more;
    };
    directory_ = std::make_unique<test::OneDaemon>("directory", with({}), "d");
    const std::string directory = "--directory=" + directory_->address();
    holder_ = std::make_unique<test::OneDaemon>(
        "holder", with({directory, "--store-capacity=64MiB", "--trace-path=" + PathOf("h")}), "h");
    std::vector<std::string> of_requester = {directory, "--trace-path=" + PathOf("r")};
    of_requester.insert(of_requester.end(), more_of_requester.begin(), more_of_requester.end());
    requester_ = std::make_unique<test::OneDaemon>("requester", with(of_requester), "r");
    for (test::OneDaemon* daemon : {directory_.get(), holder_.get(), requester_.get()})
      daemon->Start();
    for (test::OneDaemon* daemon : {directory_.get(), holder_.get(), requester_.get()})
      ASSERT_TRUE(daemon->AwaitServing()) << daemon->process().log();
    const grpc::Status put = test::Put(holder_->holder(), corpus_.geometry, corpus_.chunks[0]);
    ASSERT_TRUE(put.ok()) << put.error_message();
    ASSERT_TRUE(test::Publish(directory_->directory(), corpus_.Publish("c", "", {{{"h"}}})).ok());
  }

  // No other test has a path of this name.
  static std::string PathOf(const std::string& name) {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    return test::TempPath(std::string(info->name()) + "." + name + ".spans");
  }

  // Ends both daemons, and returns the spans of a trace that they have written.
  std::vector<nlohmann::json> EndAndReadSpans(const std::string& trace_id) {
    std::vector<nlohmann::json> spans;
    const std::pair<test::OneDaemon*, std::string> both[] = {{requester_.get(), "r"},
                                                             {holder_.get(), "h"}};
    for (const auto& [daemon, name] : both) {
      daemon->process().Signal(SIGTERM);
      EXPECT_EQ(daemon->process().AwaitExit(After(kStartTime)), 0) << daemon->process().log();
      std::istringstream lines(test::ReadWhole(PathOf(name)));
      for (std::string line; std::getline(lines, line);) {
        const auto request = nlohmann::json::parse(line);
        const auto& of = request.at("resourceSpans").at(0);
        EXPECT_EQ(of.at("resource").at("attributes").at(1).at("value").at("stringValue"), name);
        for (nlohmann::json span : of.at("scopeSpans").at(0).at("spans")) {
          if (span.at("traceId") != trace_id) continue;
          span["process"] = name;
          spans.push_back(std::move(span));
        }
      }
    }
    return spans;
  }

  v1::AttendRequest Request() const {
    const std::vector<uint16_t> q(size_t{4} * corpus_.geometry.d_qk, 0x3f80);
    return test::AttendOf("c", 0, q, corpus_.geometry.d_qk);
  }
  struct Answer {
    grpc::Status status;
    std::string trace_id;  // of the trailing metadata
  };
  Answer Attend(const std::vector<std::string>& traceparents, const v1::AttendRequest& request) {
    Call call;
    for (const std::string& text : traceparents) call.get()->AddMetadata("traceparent", text);
    v1::AttendReply reply;
    Answer answer;
    answer.status = requester_->requester().Attend(call.get(), request, &reply);
    const auto& trailing = call.get()->GetServerTrailingMetadata();
    EXPECT_EQ(trailing.count("ckv-trace-id"), 1u);
    if (const auto found = trailing.find("ckv-trace-id"); found != trailing.end())
      answer.trace_id.assign(found->second.data(), found->second.size());
    return answer;
  }

  // The messages of a daemon's log that name the trace.
  static std::vector<std::string> Lines(test::OneDaemon& daemon, const std::string& trace_id) {
    std::vector<std::string> messages;
    std::istringstream lines(daemon.process().log());
    for (std::string line; std::getline(lines, line);) {
      const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (parsed.is_object() && parsed.value("trace_id", "") == trace_id)
        messages.push_back(parsed.value("msg", ""));
    }
    return messages;
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {8}, /*seed=*/1);
  std::unique_ptr<test::OneDaemon> directory_, holder_, requester_;
};

TEST_F(TraceTest, ReturnsTheCallersId) {
  const Answer answer = Attend({kTraceparent}, Request());
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.trace_id, kTraceId);
}

TEST_F(TraceTest, WithoutAValidOneATraceBegins) {
  std::string upper = kTraceparent;
  upper[3] = 'A';
  const std::vector<std::vector<std::string>> cases = {
      {}, {"nonsense"}, {upper}, {kTraceparent, kTraceparent}};
  std::set<std::string> ids;
  for (const auto& traceparents : cases) {
    const Answer answer = Attend(traceparents, Request());
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_TRUE(ParseTraceparent("00-" + answer.trace_id + "-00f067aa0ba902b7-00").has_value());
    EXPECT_NE(answer.trace_id, kTraceId);
    ids.insert(answer.trace_id);
  }
  EXPECT_EQ(ids.size(), cases.size());
}

// The holder refuses: it has dropped the chunk that the requester needs.
TEST_F(TraceTest, AFailedCallIsNamedInItsErrorAndInBothLogs) {
  ASSERT_TRUE(Attend({}, Request()).status.ok());
  v1::DropChunkRequest drop;
  drop.set_id(std::string(corpus_.chunks[0].info.id.AsBytes()));
  v1::DropChunkReply dropped;
  ASSERT_TRUE(holder_->holder().DropChunk(Call().get(), drop, &dropped).ok());
  const Answer answer = Attend({kTraceparent}, Request());
  EXPECT_FALSE(answer.status.ok());
  EXPECT_EQ(answer.trace_id, kTraceId);
  EXPECT_THAT(answer.status.error_message(), HasSubstr(" [trace " + std::string(kTraceId) + "]"));
  EXPECT_THAT(Lines(*holder_, kTraceId), testing::Contains(HasSubstr("refused: NOT_FOUND")));
  EXPECT_THAT(Lines(*requester_, kTraceId), testing::Not(testing::IsEmpty()));
  // Nothing else has it.
  EXPECT_THAT(Lines(*holder_, ""), testing::Not(testing::IsEmpty()));
}

// A requester that received no trace still names one in its errors; members do so only if the call
// had one.
TEST_F(TraceTest, ErrorsNameTheTraceThatBegan) {
  v1::AttendRequest request = Request();
  request.set_layer(1000);
  const Answer answer = Attend({}, request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr(" [trace " + answer.trace_id + "]"));

  v1::GetCorpusRequest get;
  get.set_name("nobody");
  v1::GetCorpusReply got;
  const grpc::Status plain = directory_->directory().GetCorpus(Call().get(), get, &got);
  EXPECT_THAT(plain.error_message(), testing::Not(HasSubstr("[trace")));
  Call call;
  call.get()->AddMetadata("traceparent", kTraceparent);
  const grpc::Status named = directory_->directory().GetCorpus(call.get(), get, &got);
  EXPECT_THAT(named.error_message(), HasSubstr(kTraceId));
}

TEST_F(TraceTest, RequestsOfAStreamHaveTheStreamsTraceOrTheirOwn) {
  Call call;
  call.get()->AddMetadata("traceparent", kTraceparent);
  const auto stream = requester_->requester().AttendStream(call.get());
  v1::AttendRequest request = Request();
  request.set_layer(1000);
  const std::string own = "0af7651916cd43dd8448eb211c80319c";
  for (const std::string& traceparent : {std::string(), "00-" + own + "-b7ad6b7169203331-01"}) {
    request.set_traceparent(traceparent);
    ASSERT_TRUE(stream->Write(request));
    v1::AttendStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_NE(reply.code(), 0u);
    EXPECT_THAT(reply.message(), HasSubstr(traceparent.empty() ? kTraceId : own));
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// A stream may last forever: without a given trace, its requests do not share one.
TEST_F(TraceTest, RequestsOfAStreamWithoutATraceBeginTheirOwn) {
  Call call;
  const auto stream = requester_->requester().AttendStream(call.get());
  std::set<std::string> traces;
  for (int i = 0; i < 3; ++i) {
    v1::AttendRequest request = Request();
    request.set_layer(1000);
    ASSERT_TRUE(stream->Write(request));
    v1::AttendStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_THAT(reply.message(), HasSubstr(" [trace "));
    const std::string trace = reply.message().substr(reply.message().find(" [trace ") + 8, 32);
    EXPECT_THAT(Lines(*requester_, trace),
                testing::Contains(HasSubstr("failed: INVALID_ARGUMENT")));
    traces.insert(trace);
  }
  EXPECT_EQ(traces.size(), 3u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

int64_t TimeOf(const nlohmann::json& span, const char* field) {
  return std::stoll(span.at(field).get<std::string>());
}

// Times of spans of one process nest. Those of two processes nest as well as their clocks agree,
// which no test can hold them to.
void ExpectWithin(const nlohmann::json& span, const nlohmann::json& parent) {
  if (parent.at("process") != span.at("process")) return;
  EXPECT_GE(TimeOf(span, "startTimeUnixNano"), TimeOf(parent, "startTimeUnixNano"))
      << span << parent;
  EXPECT_LE(TimeOf(span, "endTimeUnixNano"), TimeOf(parent, "endTimeUnixNano")) << span << parent;
}

TEST_F(TraceTest, SpansFormOneTreeOverBothProcesses) {
  const std::string caller = "00f067aa0ba902b7";
  const std::string unsampled = "0af7651916cd43dd8448eb211c80319c";
  EXPECT_TRUE(Attend({"00-" + unsampled + "-" + caller + "-00"}, Request()).status.ok());
  EXPECT_TRUE(
      Attend({"00-" + std::string(kTraceId) + "-" + caller + "-01"}, Request()).status.ok());
  std::map<std::string, nlohmann::json> by_id;
  for (const nlohmann::json& span : EndAndReadSpans(kTraceId)) {
    const std::string id = span.at("spanId");
    EXPECT_EQ(id.size(), 16u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    EXPECT_LE(TimeOf(span, "startTimeUnixNano"), TimeOf(span, "endTimeUnixNano")) << span;
    EXPECT_TRUE(by_id.emplace(id, span).second) << id << " is there twice";
  }
  std::vector<std::string> edges;
  for (const auto& [id, span] : by_id) {
    const std::string parent_id = span.at("parentSpanId"), name = span.at("name");
    if (parent_id == caller) {
      edges.push_back("caller > " + name);
      continue;
    }
    ASSERT_TRUE(by_id.contains(parent_id)) << span;
    edges.push_back(by_id[parent_id].at("name").get<std::string>() + " > " + name);
    ExpectWithin(span, by_id[parent_id]);
  }
  EXPECT_THAT(edges,
              testing::UnorderedElementsAre("caller > /ckv.v1.RequesterService/Attend",
                                            "/ckv.v1.RequesterService/Attend > attend",
                                            "attend > lane", "attend > merge", "lane > serve",
                                            "serve > queue", "serve > kernel", "serve > reply"));
  for (const char* process : {"h", "r"})
    EXPECT_THAT(test::ReadWhole(PathOf(process)), testing::Not(HasSubstr(unsampled)));
}

class SampledTraceTest : public TraceTest {
 protected:
  void SetUp() override { StartFleet({"--trace-sample-one-in=1"}); }
};

// The trace begins at the requester, and its root has no parent. The calls that it makes on the
// way, which open the session, are of the trace, too.
TEST_F(SampledTraceTest, ATraceThatBeginsHereMayBeSampled) {
  const Answer answer = Attend({}, Request());
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::set<std::string> names;
  for (const nlohmann::json& span : EndAndReadSpans(answer.trace_id)) {
    const std::string name = span.at("name");
    names.insert(name);
    EXPECT_EQ(span.contains("parentSpanId"), name != "/ckv.v1.RequesterService/Attend") << span;
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"/ckv.v1.RequesterService/Attend", "attend", "lane",
                                            "serve", "/ckv.v1.HolderService/OpenSession"}));
}

}  // namespace
}  // namespace ckv
