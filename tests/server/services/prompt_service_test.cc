// Goal: the directory refuses malformed queries about prompts, a long prompt is queried in parts,
// searches have a quota of memory, and a requester does not mix the chunks of two models.

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/services/requester_service.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"
#include "tests/server/services/services_fixture.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

using test::Call;

class PromptServiceTest : public test::ServicesTest {
 protected:
  // Publishes chunks of these tokens, all standalone and of this model; no holder has their rows.
  void PublishTexts(const std::string& name, const std::string& model,
                    const std::vector<std::vector<int32_t>>& texts) {
    Corpus corpus;
    corpus.name = name;
    corpus.geometry = *NamedGeometry(model);
    for (const std::vector<int32_t>& text : texts) {
      ChunkPlacement chunk;
      chunk.id = ComputeChunkId(ModelFingerprint(corpus.geometry), {}, 0, text);
      chunk.token_count = static_cast<uint32_t>(text.size());
      chunk.set_holders({{"h0"}});
      chunk.set_token_hash(TokenHashOf(text, {}));
      corpus.chunks.push_back(chunk);
    }
    const grpc::Status published = test::Publish(*directory_stub_, corpus);
    ASSERT_TRUE(published.ok()) << published.error_message();
  }
};

// A text whose tokens occur nowhere else.
std::vector<int32_t> TextFrom(int32_t first, size_t count) {
  std::vector<int32_t> text(count);
  for (size_t i = 0; i < count; ++i) text[i] = first + static_cast<int32_t>(i);
  return text;
}

TEST_F(PromptServiceTest, MalformedQuestionsAreRefused) {
  v1::FindPromptReply reply;
  const auto code = [&](const v1::FindPromptRequest& request) {
    return directory_stub_->FindPrompt(Call().get(), request, &reply).error_code();
  };
  v1::FindPromptRequest request;
  EXPECT_EQ(code(request), grpc::StatusCode::OK);
  request.set_heads("1234567");
  EXPECT_EQ(code(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_heads(std::string(8 * (kHeadsPerCallMax + 1), '1'));
  EXPECT_EQ(code(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_heads(std::string(8 * kHeadsPerCallMax, '1'));
  EXPECT_EQ(code(request), grpc::StatusCode::OK);
  request.set_model("short");
  EXPECT_EQ(code(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_model();
  request.set_tenant(std::string(kCorpusNameBytesMax + 1, 't'));
  EXPECT_EQ(code(request), grpc::StatusCode::INVALID_ARGUMENT);

  v1::GetTenantKeyRequest key_request;
  v1::GetTenantKeyReply key;
  key_request.set_tenant("no name");
  EXPECT_EQ(directory_stub_->GetTenantKey(Call().get(), key_request, &key).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  key_request.set_tenant("acme");
  key_request.set_make(true);
  EXPECT_TRUE(directory_stub_->GetTenantKey(Call().get(), key_request, &key).ok());
  EXPECT_EQ(key.key(), "");  // this directory has no folder
}

// More heads than a call takes: the first and the last chunk of the prompt are found.
TEST_F(PromptServiceTest, ResolvesALongPromptInParts) {
  StartRequester();
  const std::vector<int32_t> first = TextFrom(1'000'000, 20), last = TextFrom(2'000'000, 30);
  PublishTexts("c", "deepseek-v2-lite", {first, last});
  std::vector<int32_t> prompt = first;
  prompt.resize(kHeadsPerCallMax + 500, 7);
  prompt.insert(prompt.end(), last.begin(), last.end());
  v1::ResolveRequest request;
  request.set_token_ids(Int32sToBytes(prompt));
  v1::ResolveReply reply;
  const grpc::Status status = requester_stub_->Resolve(Call().get(), request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(reply.spans_size(), 2);
  EXPECT_EQ(reply.spans(1).token_begin(), prompt.size() - 30);
  ASSERT_EQ(reply.gaps_size(), 1);
  EXPECT_EQ(reply.gaps(0).token_count(), prompt.size() - 50);
  EXPECT_EQ(reply.token_count(), 50u);
}

TEST_F(PromptServiceTest, SearchesHaveAQuotaOfMemory) {
  const std::vector<int32_t> text = TextFrom(5, 40);
  PublishTexts("lite", "deepseek-v2-lite", {text});
  DirectoryStub directory(directory_->address(), Clock::Real());
  HolderStubFactory holders(Clock::Real());
  auto requester = Requester::Create({}, &directory, &holders);
  ASSERT_TRUE(requester.ok()) << requester.status();
  ServiceGate gate(1);
  RequesterServiceOptions options;
  options.match_bytes_max = text.size() * kMatchTokenBytes;
  RequesterServiceImpl service(std::move(options), requester->get(), &gate);
  const auto resolve = [&](std::vector<int32_t> tokens, const std::string& hint = {}) {
    grpc::ServerContext context;
    v1::ResolveRequest request;
    request.set_token_ids(Int32sToBytes(tokens));
    request.set_corpus_hint(hint);
    v1::ResolveReply reply;
    return service.Resolve(&context, &request, &reply);
  };
  std::vector<int32_t> longer = text;
  longer.push_back(0);
  for (int i = 0; i < 3; ++i) {  // each gives back what it took
    const grpc::Status fits = resolve(text);
    EXPECT_TRUE(fits.ok()) << fits.error_message();
    EXPECT_EQ(resolve(TextFrom(900, 40)).error_code(), grpc::StatusCode::NOT_FOUND);
    const grpc::Status refused = resolve(longer);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(), testing::HasSubstr("try again"));
  }
  // No quota lets it in later.
  EXPECT_EQ(resolve(std::vector<int32_t>(kMatchedTokenCountMax + 1)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  // One corpus is matched without such tables.
  EXPECT_TRUE(resolve(longer, "lite").ok());
}

// A directory whose first two answers to a prompt wait for `let_go`.
class HeldDirectory final : public DirectoryControl {
 public:
  explicit HeldDirectory(DirectoryControl* real) : real_(*real) {}

  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline) override {
    return real_.GetCorpus(name, tenant, deadline);
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override {
    return real_.ListMembers(deadline);
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                  Instant deadline) override {
    return real_.LocateChunk(id, tenant, deadline);
  }
  absl::StatusOr<PromptChunks> FindPrompt(std::span<const uint64_t> heads,
                                          const std::optional<ChunkId>& model,
                                          std::string_view tenant, Instant deadline) override {
    if (requested_.fetch_add(1) < 2) {
      both_.DecrementCount();
      let_go.WaitForNotification();
    }
    return real_.FindPrompt(heads, model, tenant, deadline);
  }
  void WaitForTwo() { both_.Wait(); }

  absl::Notification let_go;

 private:
  DirectoryControl& real_;
  std::atomic<int> requested_ = 0;
  absl::BlockingCounter both_{2};
};

TEST_F(PromptServiceTest, SearchesAtOnceShareTheQuota) {
  const std::vector<int32_t> text = TextFrom(5, 40);
  PublishTexts("lite", "deepseek-v2-lite", {text});
  DirectoryStub stub(directory_->address(), Clock::Real());
  HeldDirectory directory(&stub);
  HolderStubFactory holders(Clock::Real());
  auto requester = Requester::Create({}, &directory, &holders);
  ASSERT_TRUE(requester.ok()) << requester.status();
  ServiceGate gate(1);
  RequesterServiceOptions options;
  options.match_bytes_max = 2 * text.size() * kMatchTokenBytes;
  RequesterServiceImpl service(std::move(options), requester->get(), &gate);
  v1::ResolveReply reply;
  const auto resolve = [&](const std::vector<int32_t>& tokens, v1::ResolveReply& answer) {
    grpc::ServerContext context;
    v1::ResolveRequest request;
    request.set_token_ids(Int32sToBytes(tokens));
    return service.Resolve(&context, &request, &answer);
  };
  std::array<v1::ResolveReply, 2> replies;
  std::array<grpc::Status, 2> statuses;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] { statuses[i] = resolve(text, replies[i]); });
  directory.WaitForTwo();
  EXPECT_EQ(resolve(text, reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  directory.let_go.Notify();
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(statuses[i].ok()) << statuses[i].error_message();
    EXPECT_EQ(replies[i].token_count(), text.size());
  }
  // The whole quota is available again.
  std::vector<int32_t> twice = text;
  twice.insert(twice.end(), text.begin(), text.end());
  const grpc::Status fits = resolve(twice, reply);
  EXPECT_TRUE(fits.ok()) << fits.error_message();
}

TEST_F(PromptServiceTest, TwoModelsAreNotMixed) {
  StartRequester();
  const std::vector<int32_t> text = TextFrom(5, 40);
  PublishTexts("lite", "deepseek-v2-lite", {text});
  PublishTexts("large", "deepseek-v3", {text});
  v1::ResolveRequest request;
  request.set_token_ids(Int32sToBytes(text));
  v1::ResolveReply reply;
  EXPECT_EQ(requester_stub_->Resolve(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_geometry_of("large");
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), request, &reply).ok());
  EXPECT_EQ(*FromProto(reply.geometry()), *NamedGeometry("deepseek-v3"));
  ASSERT_EQ(reply.spans_size(), 1);
  EXPECT_EQ(reply.spans(0).chunk().id(),
            ComputeChunkId(ModelFingerprint(*NamedGeometry("deepseek-v3")), {}, 0, text).AsBytes());
}

}  // namespace
}  // namespace ckv
