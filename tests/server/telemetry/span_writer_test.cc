// Goal: what is recorded is in the file as OTLP/JSON, in bounded memory and bounded files.

#include "server/telemetry/span_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/telemetry/trace_sampler.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using nlohmann::json;

class SpanWriterTest : public testing::Test {
 public:
  ~SpanWriterTest() override { Remove(); }

 protected:
  SpanWriterTest() : path_(test::TempPath("spans")) { Remove(); }
  void Remove() const {
    std::remove(path_.c_str());
    std::remove((path_ + ".1").c_str());
  }

  std::unique_ptr<SpanWriter> Start(uint64_t file_bytes_max = uint64_t{1} << 20) {
    SpanWriterOptions options;
    options.path = path_;
    options.file_bytes_max = file_bytes_max;
    options.resource = {"h\"1\n", "holder", "0.1.0"};
    options.clock = &clock_;
    options.unix_offset_ns = 1'000'000'000'000'000'000;
    auto writer = SpanWriter::Start(options);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  static std::vector<json> Lines(const std::string& path) {
    std::vector<json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  static json SpansOf(const json& line) {
    return line.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans");
  }
  static size_t SpanCount(const std::string& path) {
    size_t count = 0;
    for (const json& line : Lines(path)) count += SpansOf(line).size();
    return count;
  }
  static Span MakeSpan() {
    Span span = BeginSpan(NewTrace(true), "serve", SpanKind::kServer, {1'000'000'001});
    span.end = {1'000'000'500};
    return span;
  }

  const std::string path_;
  ManualClock clock_;
};

TEST_F(SpanWriterTest, ALineIsAnExportRequestOfOtlpJson) {
  Span span = MakeSpan();
  span.parent_id = {1, 2, 3, 4, 5, 6, 7, 0xff};
  span.failed = true;
  span.Set("layer", -3);
  span.Set("requester", "r\"1\n\xff");
  Start()->Record(span);  // the writer's end writes
  const std::vector<json> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 1u);
  const json& resource = lines[0].at("resourceSpans").at(0).at("resource");
  EXPECT_EQ(resource.at("attributes").at(0), json::parse(R"({"key": "service.name",
      "value": {"stringValue": "ckvd"}})"));
  EXPECT_EQ(resource.at("attributes").at(1).at("value").at("stringValue"), "h\"1\n");
  const json written = SpansOf(lines[0]).at(0);
  EXPECT_EQ(written,
            (json{{"traceId", ToHex(span.trace_id)},
                  {"spanId", ToHex(span.span_id)},
                  {"parentSpanId", "01020304050607ff"},
                  {"name", "serve"},
                  {"kind", 2},
                  {"startTimeUnixNano", "1000000001000000001"},
                  {"endTimeUnixNano", "1000000001000000500"},
                  {"attributes",
                   {{{"key", "layer"}, {"value", {{"intValue", "-3"}}}},
                    {{"key", "requester"}, {"value", {{"stringValue", "r\"1\n\xef\xbf\xbd"}}}}}},
                  {"status", {{"code", 2}}}}));
}

TEST_F(SpanWriterTest, ARootHasNoParent) {
  Start()->Record(MakeSpan());
  EXPECT_FALSE(SpansOf(Lines(path_).at(0)).at(0).contains("parentSpanId"));
}

TEST_F(SpanWriterTest, FlushWritesAllSpans) {
  const auto writer = Start();
  for (size_t i = 0; i < SpanWriter::kSpansPerLineMax + 1; ++i) writer->Record(MakeSpan());
  writer->Flush();
  EXPECT_EQ(SpanCount(path_), SpanWriter::kSpansPerLineMax + 1);
  EXPECT_EQ(writer->counts().recorded, SpanWriter::kSpansPerLineMax + 1);
  EXPECT_EQ(writer->counts().dropped, 0u);
}

// A restarted process appends: a restart loses nothing.
TEST_F(SpanWriterTest, AFileThatIsThereIsAppendedTo) {
  Start()->Record(MakeSpan());
  Start()->Record(MakeSpan());
  EXPECT_EQ(SpanCount(path_), 2u);
}

TEST_F(SpanWriterTest, TwoFilesOfTheirLimitAreAll) {
  constexpr uint64_t kFileBytesMax = 4096;
  const auto writer = Start(kFileBytesMax);
  for (int i = 0; i < 100; ++i) {
    writer->Record(MakeSpan());
    writer->Flush();
    struct stat found {};
    ASSERT_EQ(stat(path_.c_str(), &found), 0);
    EXPECT_LE(found.st_size, off_t{kFileBytesMax});
  }
  EXPECT_EQ(writer->counts().dropped, 0u);
  EXPECT_GT(SpanCount(path_ + ".1"), 0u);
  struct stat before {};
  ASSERT_EQ(stat((path_ + ".1").c_str(), &before), 0);
  EXPECT_LE(before.st_size, off_t{kFileBytesMax});
  EXPECT_NE(access((path_ + ".2").c_str(), F_OK), 0);
}

// Every span is in the file or counted as dropped, however many are recorded at once.
TEST_F(SpanWriterTest, ABurstIsDroppedAndCounted) {
  constexpr size_t kCount = 10 * SpanWriter::kSpanCountMax;
  const auto writer = Start(uint64_t{1} << 30);
  const Span span = MakeSpan();
  for (size_t i = 0; i < kCount; ++i) writer->Record(span);
  writer->Flush();
  EXPECT_EQ(writer->counts().recorded, kCount);
  EXPECT_EQ(SpanCount(path_) + writer->counts().dropped, kCount);
}

// A disk that is full in the middle of a line, and later has room again.
TEST_F(SpanWriterTest, AFullDiskDropsAndCountsAndLeavesNoHalfLine) {
  const auto writer = Start();
  writer->Record(MakeSpan());
  writer->Flush();
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few = {std::filesystem::file_size(path_) + 10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  writer->Record(MakeSpan());
  writer->Flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(writer->counts().dropped, 1u);
  writer->Record(MakeSpan());
  writer->Flush();
  EXPECT_EQ(SpanCount(path_), 2u);
}

TEST_F(SpanWriterTest, ALineThatAKilledProcessLeftSwallowsNoOther) {
  std::ofstream(path_) << R"({"resourceSpans":[{"reso)";
  Start()->Record(MakeSpan());
  std::ifstream file(path_);
  std::string half, whole;
  std::getline(file, half);
  std::getline(file, whole);
  EXPECT_EQ(SpansOf(json::parse(whole)).size(), 1u);
}

// As logrotate or an operator does.
TEST_F(SpanWriterTest, BeginsAgainIfItsFileWasRemoved) {
  const auto writer = Start();
  writer->Record(MakeSpan());
  writer->Flush();
  std::filesystem::remove(path_);
  writer->Record(MakeSpan());
  writer->Flush();
  EXPECT_EQ(SpanCount(path_), 1u);
}

TEST_F(SpanWriterTest, RefusesAFileThatIsNotItsOwn) {
  const auto refusal = [&](const std::string& path) {
    SpanWriterOptions options;
    options.path = path;
    options.clock = &clock_;
    const absl::Status status = SpanWriter::Start(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto first = Start();
  EXPECT_THAT(refusal(path_), testing::HasSubstr("another process writes to it"));
  EXPECT_THAT(refusal("/dev/null"), testing::HasSubstr("is no regular file"));
  ASSERT_EQ(mkfifo((path_ + ".1").c_str(), 0600), 0);
  EXPECT_THAT(refusal(path_ + ".1"), testing::HasSubstr("is no regular file"));
}

TEST_F(SpanWriterTest, APathThatCannotBeOpenedIsRefused) {
  SpanWriterOptions options;
  options.path = path_ + "/no/such/folder";
  const auto writer = SpanWriter::Start(options);
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(writer.status().message()), testing::HasSubstr("trace.path: "));
}

TEST(TraceSampler, TakesOneInSoMany) {
  TraceSampler none(0), all(1), third(3);
  int of_third = 0;
  for (int i = 0; i < 300; ++i) {
    EXPECT_FALSE(none.Sample());
    EXPECT_TRUE(all.Sample());
    of_third += third.Sample() ? 1 : 0;
  }
  EXPECT_EQ(of_third, 100);
}

}  // namespace
}  // namespace ckv
