// Goal: no secret is in a log or a span, at any level and in any format, whatever fails.
// Method: a fleet of real processes logs everything, and gRPC's own tracing is on. Calls carry
// canaries wherever a secret or a tenant's data may be: metadata, environment, prompts, query rows,
// chunks, tokens of lanes. Then no log and no span has one, in any of the ways to print bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "tests/e2e/one_daemon.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/wire.h"

namespace ckv {
namespace {

using test::After;
using test::Call;
using test::kStartTime;

// Bytes that a secret of this kind has, and the ways in which a log could show them.
class Canary {
 public:
  Canary(std::string what, const std::string& bytes) : what_(std::move(what)) {
    const absl::string_view view(bytes.data(), bytes.size());
    const auto add = [this](const absl::string_view form) { forms_.emplace_back(form); };
    add(view);
    add(absl::BytesToHexString(view));
    add(absl::AsciiStrToUpper(absl::BytesToHexString(view)));
    add(absl::CEscape(view));
    // Base64 of a part of a longer text begins anywhere in a group of three bytes.
    for (size_t skip = 0; skip < 3; ++skip) {
      const absl::string_view part = view.substr(skip, (view.size() - skip) / 3 * 3);
      add(absl::Base64Escape(part));
      add(absl::WebSafeBase64Escape(part));
    }
    std::string spaced;
    for (const char c : bytes) {
      if (!spaced.empty()) spaced += ' ';
      spaced += absl::StrFormat("%02x", static_cast<uint8_t>(c));
    }
    add(spaced);
  }
  void AddForm(const std::string& form) { forms_.push_back(form); }

  void ExpectAbsent(const std::string& log) const {
    for (const std::string& form : forms_) {
      const size_t at = log.find(form);
      EXPECT_EQ(at, std::string::npos)
          << what_ << " as '" << absl::CEscape(absl::string_view(form.data(), form.size()))
          << "' in: " << log.substr(std::max<size_t>(at, 200) - 200, 600);
    }
  }

 private:
  std::string what_;
  std::vector<std::string> forms_;
};

constexpr std::string_view kBearer = "CANARY-bearer-4f1c";
constexpr std::string_view kEnvironment = "CANARY-environment-77aa";
constexpr std::string_view kTenant = "CANARY-tenant-0b5d";
// 8 bf16 each, of which every second letter is the exponent: below 2^45, so that they are attended.
constexpr std::string_view kRow = "rOwSoFaCaNaRyEd.";
constexpr std::string_view kQuery = "qUeRyOfAcAnArIe.";
constexpr int32_t kTokenId = 1'128'353'089;

std::vector<uint16_t> Repeat(std::string_view bytes, size_t value_count) {
  std::vector<uint16_t> values(value_count);
  auto* const out = reinterpret_cast<char*>(values.data());
  for (size_t i = 0; i < value_count * 2; ++i) out[i] = bytes[i % bytes.size()];
  return values;
}

std::vector<int32_t> Prompt(size_t token_count) {
  std::vector<int32_t> ids(token_count);
  for (size_t i = 0; i < token_count; ++i) ids[i] = kTokenId + static_cast<int32_t>(i);
  return ids;
}

test::TestCorpus CanaryCorpus() {
  test::TestCorpus corpus{.geometry = test::TestGeometry(), .chunks = {}};
  test::TestChunk chunk;
  chunk.info.token_ids = Prompt(8);
  chunk.info.id = ComputeChunkId(ModelFingerprint(corpus.geometry), {}, 0, chunk.info.token_ids);
  for (uint32_t layer = 0; layer < corpus.geometry.layers; ++layer) {
    chunk.layers.push_back(Repeat(kRow, size_t{8} * corpus.geometry.d_qk));
    chunk.info.tensor_checksums.push_back(
        ChecksumOf(std::as_bytes(std::span(chunk.layers.back()))));
  }
  corpus.chunks.push_back(std::move(chunk));
  return corpus;
}

// A call with a secret in its metadata.
class SecretCall : public Call {
 public:
  SecretCall() {
    get()->AddMetadata("authorization", "Bearer " + std::string(kBearer));
    get()->AddMetadata("x-api-key", std::string(kBearer));
    get()->AddMetadata("x-key-bin", std::string(kBearer));
  }
};

class LogCanaryTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string secret(kEnvironment);
    setenv("CKV_STORE_SECRET", secret.c_str(), 1);  // a warning names it
    setenv("AWS_SECRET_ACCESS_KEY", secret.c_str(), 1);
    setenv("GRPC_VERBOSITY", "DEBUG", 1);
    setenv("GRPC_TRACE", "all", 1);
    const std::vector<std::string> all = {"--log-level=trace", "--log-format=" + GetParam(),
                                          "--fabrics=tcp", "--lease-ttl=1s",
                                          "--trace-sample-one-in=1"};
    const auto with = [&all](std::vector<std::string> more) {
      more.insert(more.end(), all.begin(), all.end());
      return more;
    };
    for (const char* name : {".h", ".r"}) std::remove((spans_path_ + name).c_str());
    directory_ = std::make_unique<test::OneDaemon>("directory", with({}), "d");
    const std::string directory = "--directory=" + directory_->address();
    // One file: each line is one write.
    const std::string spans = "--trace-path=" + spans_path_;  // and the daemon's name
    holder_ = std::make_unique<test::OneDaemon>(
        "holder", with({directory, "--store-capacity=64MiB", spans + ".h"}), "h");
    requester_ =
        std::make_unique<test::OneDaemon>("requester", with({directory, spans + ".r"}), "r");
    for (test::OneDaemon* daemon : {directory_.get(), holder_.get(), requester_.get()}) {
      daemon->Start();
    }
    // This process' own gRPC is quiet.
    unsetenv("GRPC_TRACE");
    unsetenv("GRPC_VERBOSITY");
    for (test::OneDaemon* daemon : {directory_.get(), holder_.get(), requester_.get()}) {
      ASSERT_TRUE(daemon->AwaitServing()) << daemon->process().log();
    }
    AddCanaries();
  }

  void AddCanaries() {
    canaries_.emplace_back("metadata", std::string(kBearer));
    canaries_.emplace_back("environment", std::string(kEnvironment));
    canaries_.emplace_back("tenant", std::string(kTenant));
    canaries_.emplace_back("row", std::string(kRow));
    canaries_.emplace_back("query", std::string(kQuery));
    const std::vector<int32_t> prompt = Prompt(4);
    Canary tokens("token ids", Int32sToBytes(prompt));
    tokens.AddForm(std::to_string(kTokenId));
    tokens.AddForm(std::to_string(kTokenId + 1));
    canaries_.push_back(tokens);
  }

  // Puts, publishes and attends; then every one of these wrongly.
  void Serve() {
    const test::TestCorpus corpus = CanaryCorpus();
    const grpc::Status put = test::Put(holder_->holder(), corpus.geometry, corpus.chunks[0]);
    ASSERT_TRUE(put.ok()) << put.error_message();
    test::TestChunk damaged = corpus.chunks[0];
    damaged.layers[0][0] ^= 1;
    damaged.info.token_ids.push_back(kTokenId);
    EXPECT_FALSE(test::Put(holder_->holder(), corpus.geometry, damaged).ok());
    const std::string tenant(kTenant);
    const Corpus published = corpus.Publish("c", tenant, {{{"h"}}});
    ASSERT_TRUE(test::Publish(directory_->directory(), published).ok());
    const auto q = Repeat(kQuery, size_t{4} * corpus.geometry.d_qk);
    v1::AttendRequest request = test::AttendOf("c", 0, q, corpus.geometry.d_qk);
    request.set_tenant(tenant);
    EXPECT_TRUE(Attend(request));
    EXPECT_TRUE(Resolve(Int32sToBytes(Prompt(8)), tenant));

    request.set_tenant(tenant + "-other");
    EXPECT_FALSE(Attend(request));
    request.set_tenant(tenant);
    request.set_corpus_version(77);
    EXPECT_FALSE(Attend(request));
    request.clear_corpus_version();
    request.set_layer(1000);
    EXPECT_FALSE(Attend(request));
    request.set_layer(0);
    request.set_q(request.q() + std::string(kQuery));
    EXPECT_FALSE(Attend(request));
    EXPECT_FALSE(Resolve(Int32sToBytes(Prompt(4)) + "x", tenant));
    EXPECT_FALSE(Resolve(Int32sToBytes(Prompt(8)), tenant + "-other"));
    holder_->Kill();
    EXPECT_FALSE(Attend(test::AttendOf("c", 0, q, corpus.geometry.d_qk)));
    request = test::AttendOf("c", 0, q, corpus.geometry.d_qk);
    request.set_tenant(tenant);
    EXPECT_FALSE(Attend(request));
  }

  bool Attend(const v1::AttendRequest& request) {
    SecretCall call;
    v1::AttendReply reply;
    return requester_->requester().Attend(call.get(), request, &reply).ok();
  }
  bool Resolve(const std::string& token_ids, const std::string& tenant) {
    SecretCall call;
    v1::ResolveRequest request;
    request.set_token_ids(token_ids);
    request.set_corpus_hint("c");
    request.set_tenant(tenant);
    v1::ResolveReply reply;
    return requester_->requester().Resolve(call.get(), request, &reply).ok();
  }

  // Opens a session, whose answer has the token of its lane, and knocks with another token.
  void OpenLane() {
    SecretCall call;
    v1::OpenSessionRequest request;
    request.set_wire_version_min(kWireVersionMin);
    request.set_wire_version_max(kWireVersion);
    *request.mutable_geometry() = ToProto(test::TestGeometry());
    request.set_tenant(std::string(kTenant));
    request.set_requester("stranger");
    const LaneShape shape;
    request.mutable_shape()->set_slot_count(shape.slot_count);
    request.mutable_shape()->set_request_bytes_max(shape.request_bytes_max);
    request.mutable_shape()->set_reply_bytes_max(shape.reply_bytes_max);
    v1::FabricOffer* offer = request.add_offers();
    offer->set_fabric("tcp");
    offer->add_offers(EncodeOffer(FabricKind::kTcp, ""));
    v1::OpenSessionReply reply;
    const grpc::Status opened = holder_->holder().OpenSession(call.get(), request, &reply);
    ASSERT_TRUE(opened.ok()) << opened.error_message();
    ASSERT_EQ(reply.answers_size(), 1);
    const auto answer = DecodeAnswer(FabricKind::kTcp, reply.answers(0));
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto bytes_of = [](const Token& token) {
      return std::string(reinterpret_cast<const char*>(token.data()), token.size());
    };
    canaries_.emplace_back("token of a lane", bytes_of(answer->key.token));

    HelloFrame hello;
    hello.invitation = answer->key.id;
    std::copy(kBearer.begin(), kBearer.begin() + 16, hello.token.begin());
    canaries_.emplace_back("wrong token", bytes_of(hello.token));
    Knock(answer->address, hello);
  }

  // Sends `hello` to the listener of lanes, and waits until it hangs up.
  static void Knock(const std::string& address, const HelloFrame& hello) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
    ASSERT_EQ(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), ssize_t{sizeof(hello)});
    char byte = 0;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0);
    close(fd);
  }

  static void ExpectInFormat(const std::string& line) {
    if (GetParam() == "json") {
      const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(parsed.is_object()) << line;
      for (const char* field : {"ts", "level", "name", "role", "src", "tid", "msg"}) {
        EXPECT_TRUE(parsed.contains(field)) << field << ": " << line;
      }
    } else if (GetParam() == "logfmt") {
      EXPECT_THAT(line, testing::StartsWith("ts="));
      EXPECT_THAT(line, testing::HasSubstr(" msg="));
    } else {
      EXPECT_TRUE(line.size() > 25 && line[23] == 'Z') << line;
    }
  }

  const std::string spans_path_ = test::TempPath("spans");
  std::vector<Canary> canaries_;
  std::unique_ptr<test::OneDaemon> directory_, holder_, requester_;
};

TEST_P(LogCanaryTest, NoLogHasACanary) {
  OpenLane();
  Serve();
  for (test::OneDaemon* daemon : {requester_.get(), directory_.get(), holder_.get()}) {
    daemon->process().Signal(SIGTERM);
    EXPECT_TRUE(daemon->process().AwaitExit(After(kStartTime)).has_value());
    const std::string log = daemon->process().log();
    for (const Canary& canary : canaries_) canary.ExpectAbsent(log);
    // The log is one of everything, from the first line on.
    EXPECT_THAT(log, testing::HasSubstr("CKV_STORE_SECRET"));
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) ExpectInFormat(line);
  }
  EXPECT_THAT(holder_->process().log(), testing::HasSubstr("no such invitation"));
  const std::string spans =
      test::ReadWhole(spans_path_ + ".h") + test::ReadWhole(spans_path_ + ".r");
  EXPECT_THAT(spans, testing::HasSubstr("RequesterService/Attend"));
  for (const Canary& canary : canaries_) canary.ExpectAbsent(spans);
}

INSTANTIATE_TEST_SUITE_P(Formats, LogCanaryTest, testing::Values("text", "logfmt", "json"),
                         [](const auto& format) { return format.param; });

}  // namespace
}  // namespace ckv
