// Goal: a stream keeps its context, answers each request once and by its tag, and takes no thread.
// Method: whole daemons in this process, called over gRPC as any client would; answers are compared
// with those of unary calls, bit for bit.

#include <map>
#include <thread>

#include "attention/bf16.h"
#include "server/rpc/attend_request.h"
#include "server/rpc/attend_stream.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;
using testing::HasSubstr;

class AttendStreamTest : public test::ServicesTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::AttendRequest, v1::AttendStreamReply>;

  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    StartRequester();
    Load("c", corpus_);
  }
  // Names all of the corpus; the layer is part of every request anyway.
  v1::AttendRequest Named(uint32_t layer = 0) {
    return test::AttendOf("c", layer, q_, corpus_.geometry.d_qk);
  }
  v1::AttendRequest Unnamed(uint64_t tag, uint32_t layer = 0) {
    v1::AttendRequest request = test::AttendOf("", layer, q_, corpus_.geometry.d_qk);
    request.set_tag(tag);
    return request;
  }
  v1::AttendReply Unary(const v1::AttendRequest& request) {
    v1::AttendReply reply;
    const grpc::Status status = Attend(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  static v1::AttendStreamReply Ask(Stream& stream, const v1::AttendRequest& request) {
    v1::AttendStreamReply reply;
    EXPECT_TRUE(stream.Write(request));
    EXPECT_TRUE(stream.Read(&reply));
    EXPECT_EQ(reply.tag(), request.tag());
    return reply;
  }
  static void ExpectSameBits(const v1::AttendReply& got, const v1::AttendReply& want) {
    EXPECT_EQ(got.row_count(), want.row_count());
    EXPECT_TRUE(got.o() == want.o());
    EXPECT_TRUE(got.m() == want.m());
    EXPECT_TRUE(got.l() == want.l());
  }
  static grpc::Status End(Stream& stream) {
    stream.WritesDone();
    v1::AttendStreamReply more;
    EXPECT_FALSE(stream.Read(&more)) << more.tag() << " " << more.message();
    return stream.Finish();
  }
  // Publishes the corpus again, its first `count` chunks alone, with every chunk on holder 1 only.
  void MoveToHolderOne(size_t count) {
    Corpus moved = corpus_.Publish("c", "", {{{"h1"}}});
    moved.chunks.resize(count);
    v1::PublishCorpusRequest publish;
    *publish.mutable_corpus() = ToProto(moved);
    publish.set_replace(true);
    v1::PublishCorpusReply published;
    ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &published).ok());
    for (const test::TestChunk& chunk : corpus_.chunks) {
      (void)test::Put(*holder_stubs_[1], corpus_.geometry, chunk);  // it may be there
      v1::DropChunkRequest drop;
      drop.set_id(std::string(chunk.info.id.AsBytes()));
      v1::DropChunkReply dropped;
      (void)holder_stubs_[0]->DropChunk(Call().get(), drop, &dropped);
    }
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {50, 64, 7}, 41);
  std::mt19937 rng_{42};
  const std::vector<uint16_t> q_ = test::RandomBf16(4 * corpus_.geometry.d_qk, rng_);
};

TEST_F(AttendStreamTest, ManyAreInFlightAndEachIsAnsweredOnce) {
  constexpr uint64_t kCount = 60;  // more than a stream has in flight, and than call contexts
  const v1::AttendReply want[] = {Unary(Named(0)), Unary(Named(1)), Unary(Named(2))};
  test::ExpectNear(want[1], test::Reference(corpus_.geometry, q_, corpus_.Rows(1)));
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  std::thread writer([&] {
    v1::AttendRequest opening = Named(0);
    EXPECT_TRUE(stream->Write(opening));  // tag 0
    for (uint64_t tag = 1; tag < kCount; ++tag)
      EXPECT_TRUE(stream->Write(Unnamed(tag, static_cast<uint32_t>(tag % 3))));
    stream->WritesDone();
  });
  std::map<uint64_t, int> seen;
  v1::AttendStreamReply reply;
  while (stream->Read(&reply)) {
    ++seen[reply.tag()];
    ASSERT_EQ(reply.code(), 0u) << reply.message();
    EXPECT_EQ(reply.reply().tag(), reply.tag());
    ExpectSameBits(reply.reply(), want[reply.tag() % 3]);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(seen.size(), kCount);
  for (const auto& [tag, count] : seen) EXPECT_EQ(count, 1) << tag;
}

TEST_F(AttendStreamTest, ARequestWithoutAContextGetsARemedy) {
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  v1::AttendStreamReply reply = Ask(*stream, Unnamed(1));
  EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(reply.message(), HasSubstr("must name a corpus"));
  // The error of a context is that of the requests behind it.
  v1::AttendRequest nothing = Unnamed(2);
  nothing.set_corpus("nothing");
  EXPECT_EQ(Ask(*stream, nothing).code(), static_cast<uint32_t>(grpc::StatusCode::NOT_FOUND));
  reply = Ask(*stream, Unnamed(3));
  EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(reply.message(), HasSubstr("nothing"));
  EXPECT_EQ(Ask(*stream, Named()).code(), 0u);
  EXPECT_EQ(Ask(*stream, Unnamed(4)).code(), 0u);
  EXPECT_TRUE(End(*stream).ok());
}

// A request without rows opens a context; each later name opens another, for those behind it.
TEST_F(AttendStreamTest, TheLastNameCounts) {
  v1::AttendRequest first_chunk = Named();
  first_chunk.set_chunk_end(1);
  const v1::AttendReply all = Unary(Named()), one = Unary(first_chunk);
  EXPECT_NE(all.o(), one.o());
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  v1::AttendRequest opening = Named();
  opening.clear_q();
  opening.set_row_count(0);
  v1::AttendStreamReply reply = Ask(*stream, opening);
  EXPECT_EQ(reply.code(), 0u) << reply.message();
  EXPECT_EQ(reply.reply().row_count(), 0u);
  ExpectSameBits(Ask(*stream, Unnamed(1)).reply(), all);
  ExpectSameBits(Ask(*stream, first_chunk).reply(), one);
  ExpectSameBits(Ask(*stream, Unnamed(2)).reply(), one);
  // Many at once, which name one and the other in turns: each gets what it, or the last, named.
  for (uint64_t tag = 0; tag < 12; ++tag) {
    v1::AttendRequest request = tag % 4 == 0 ? Named() : tag % 4 == 2 ? first_chunk : Unnamed(0);
    request.set_tag(tag);
    ASSERT_TRUE(stream->Write(request));
  }
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(stream->Read(&reply));
    ASSERT_EQ(reply.code(), 0u) << reply.message();
    ExpectSameBits(reply.reply(), reply.tag() % 4 < 2 ? all : one);
  }
  EXPECT_TRUE(End(*stream).ok());
}

TEST_F(AttendStreamTest, AnAnswerHasTheRequestedType) {
  const std::vector<float> o = test::FloatsOf(Unary(Named()).o());
  std::vector<uint16_t> rounded(o.size());
  Bf16FromFloats(o.data(), rounded.data(), o.size());
  const std::string want(reinterpret_cast<const char*>(rounded.data()), rounded.size() * 2);
  v1::AttendRequest request = Named();
  request.set_answer(v1::PARTIAL_DTYPE_BF16);
  const v1::AttendReply unary = Unary(request);
  EXPECT_TRUE(unary.o() == want);
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  ExpectSameBits(Ask(*stream, request).reply(), unary);
  request.set_answer(static_cast<v1::PartialDtype>(9));
  EXPECT_EQ(Ask(*stream, request).code(),
            static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  // Half the bytes for each value: more rows fit one message.
  const uint64_t bytes_max = 256 + 4 * corpus_.geometry.partial_row_bytes(/*f32=*/false);
  request = Named();
  request.set_reply_bytes_max(bytes_max);
  EXPECT_EQ(Ask(*stream, request).code(),
            static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  request.set_answer(v1::PARTIAL_DTYPE_BF16);
  EXPECT_EQ(Ask(*stream, request).code(), 0u);
  EXPECT_TRUE(End(*stream).ok());
}

// Goal: streams hold no threads, and have a limit all the same. Method: as many open streams as may
// be, more than there are threads for streams, each of which has been answered; one more is
// refused; all of them and a unary call are answered again.
TEST_F(AttendStreamTest, StreamsHoldNoThreads) {
  constexpr size_t kCount = AttendStreams::kStreamCountMax;
  ASSERT_GT(kCount, Config().rpc_thread_count_max / 2);
  const v1::AttendReply want = Unary(Named());
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<Stream>> streams;
  for (size_t i = 0; i < kCount; ++i) {
    calls.push_back(std::make_unique<Call>(std::chrono::seconds(60)));
    streams.push_back(requester_stub_->AttendStream(calls.back()->get()));
    ExpectSameBits(Ask(*streams.back(), Named()).reply(), want);
  }
  Call refused;
  const auto one_more = requester_stub_->AttendStream(refused.get());
  v1::AttendStreamReply none;
  EXPECT_FALSE(one_more->Read(&none));
  EXPECT_EQ(one_more->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.get()->GetServerTrailingMetadata().count(kRetryAfterKey), 1u);
  for (const auto& stream : streams) ASSERT_TRUE(stream->Write(Unnamed(1)));
  ExpectSameBits(Unary(Named()), want);
  for (const auto& stream : streams) {
    v1::AttendStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    ExpectSameBits(reply.reply(), want);
    EXPECT_TRUE(End(*stream).ok());
  }
}

// Streams that named a version, a range or neither: where the chunks are is no part of what they
// named.
TEST_F(AttendStreamTest, MovedChunksAreFoundAgain) {
  const v1::AttendReply want = Unary(Named());
  v1::ResolveRequest resolve;
  resolve.set_corpus("c");
  v1::ResolveReply resolved;
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), resolve, &resolved).ok());
  std::vector<v1::AttendRequest> openings(3, Named());
  openings[1].set_corpus_version(resolved.corpus().version());
  openings[2].set_chunk_end(static_cast<uint32_t>(corpus_.chunks.size()));
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const v1::AttendRequest& opening : openings) {
    calls.push_back(std::make_unique<Call>());
    streams.push_back(requester_stub_->AttendStream(calls.back()->get()));
    ExpectSameBits(Ask(*streams.back(), opening).reply(), want);
  }
  MoveToHolderOne(corpus_.chunks.size());
  for (const auto& stream : streams) {
    // Several at once, so that some find the context being opened again.
    for (uint64_t tag = 1; tag < 9; ++tag) ASSERT_TRUE(stream->Write(Unnamed(tag)));
    for (uint64_t tag = 1; tag < 9; ++tag) {
      v1::AttendStreamReply reply;
      ASSERT_TRUE(stream->Read(&reply));
      ASSERT_EQ(reply.code(), 0u) << reply.message();
      ExpectSameBits(reply.reply(), want);
    }
    EXPECT_TRUE(End(*stream).ok());
  }
}

// Goal: a stream outlives its holders. Method: a holder ends and is restarted with its chunks;
// every reply between is UNAVAILABLE or right, and those over the other holder's chunks are right.
TEST_F(AttendStreamTest, FindsAHolderThatReturnsAgain) {
  const v1::AttendReply want = Unary(Named());
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  // If routes are slow, policy auto prefetches these few rows at once, and needs no holder.
  v1::AttendRequest routed = Named();
  routed.set_policy(v1::CONTEXT_POLICY_ROUTE);
  ExpectSameBits(Ask(*stream, routed).reply(), want);
  holders_[1].reset();
  v1::AttendRequest of_holder_0 = Unnamed(5);  // chunks 0 and 2 are its own
  of_holder_0.mutable_selection()->set_k(2);
  of_holder_0.mutable_selection()->set_group_rows(4);
  of_holder_0.mutable_selection()->set_indices(Int32sToBytes(std::vector<int32_t>{3, 115}));
  for (uint64_t tag = 1; tag < 4; ++tag) {
    v1::AttendRequest in_vain = Unnamed(tag);
    in_vain.set_timeout_ms(1000);
    const v1::AttendStreamReply reply = Ask(*stream, in_vain);
    EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::UNAVAILABLE))
        << reply.message();
    const v1::AttendStreamReply other = Ask(*stream, of_holder_0);
    EXPECT_EQ(other.code(), 0u) << other.message();
  }
  StartHolderAgain(1);
  ASSERT_TRUE(test::Put(*holder_stubs_[1], corpus_.geometry, corpus_.chunks[1]).ok());
  v1::AttendStreamReply reply;
  const Instant give_up = Soon();
  do {
    ASSERT_LT(Clock::Real()->Now(), give_up) << reply.message();
    reply = Ask(*stream, Unnamed(6));
  } while (reply.code() != 0);
  ExpectSameBits(reply.reply(), want);
  EXPECT_TRUE(End(*stream).ok());
}

// A context never mixes two versions: it ends when its chunks are dropped, and uses no others.
TEST_F(AttendStreamTest, OtherChunksUnderTheSameNameAreRefused) {
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  EXPECT_EQ(Ask(*stream, Named()).code(), 0u);
  MoveToHolderOne(corpus_.chunks.size() - 1);
  for (uint64_t tag = 1; tag < 3; ++tag) {
    const v1::AttendStreamReply reply = Ask(*stream, Unnamed(tag));
    EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::FAILED_PRECONDITION));
    EXPECT_THAT(reply.message(), HasSubstr("name them again"));
  }
  // A client that names the corpus means its current chunks.
  const v1::AttendReply want = Unary(Named());
  for (const v1::AttendRequest& request : {Named(), Unnamed(7)}) {
    const v1::AttendStreamReply reply = Ask(*stream, request);
    ASSERT_EQ(reply.code(), 0u) << reply.message();
    ExpectSameBits(reply.reply(), want);
  }
  EXPECT_TRUE(End(*stream).ok());
}

// The same for a client that names its corpus every time: it never notices.
TEST_F(AttendStreamTest, AReplacedCorpusIsThatOfRequestsThatNameIt) {
  const v1::AttendReply before = Unary(Named());
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  ExpectSameBits(Ask(*stream, Named()).reply(), before);
  Corpus shorter = corpus_.Publish("c", "", {{{"h0"}}, {{"h1"}}});
  shorter.chunks.pop_back();
  v1::PublishCorpusRequest publish;
  *publish.mutable_corpus() = ToProto(shorter);
  publish.set_replace(true);
  v1::PublishCorpusReply published;
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &published).ok());
  // The watch brings the news. Until then the chunks are as before.
  v1::AttendStreamReply reply;
  const Instant give_up = Soon();
  do {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    reply = Ask(*stream, Named());
    ASSERT_EQ(reply.code(), 0u) << reply.message();
  } while (reply.reply().o() == before.o());
  ExpectSameBits(reply.reply(), Unary(Named()));
  EXPECT_TRUE(End(*stream).ok());
}

// A request may repeat the stream's own range, tenant or version without the corpus. Others are
// refused.
TEST_F(AttendStreamTest, RefusesHalfANameAndAffectsNoOther) {
  v1::AttendRequest first_two = Named();
  first_two.set_chunk_end(2);
  const v1::AttendReply want = Unary(first_two);
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  ExpectSameBits(Ask(*stream, first_two).reply(), want);
  v1::AttendRequest half = Unnamed(1);
  half.set_chunk_end(2);
  ExpectSameBits(Ask(*stream, half).reply(), want);
  const auto expect_refused = [&](auto change) {
    v1::AttendRequest request = Unnamed(2);
    change(request);
    const v1::AttendStreamReply reply = Ask(*stream, request);
    EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
    EXPECT_THAT(reply.message(), HasSubstr("name the corpus, too"));
    ExpectSameBits(Ask(*stream, Unnamed(3)).reply(), want);
  };
  expect_refused([](auto& request) { request.set_chunk_end(1); });
  expect_refused([](auto& request) { request.set_chunk_begin(1); });
  expect_refused([](auto& request) { request.set_tenant("red"); });
  expect_refused([](auto& request) { request.set_corpus_version(99); });
  EXPECT_TRUE(End(*stream).ok());
}

// Goal: a caller that disconnects leaves nothing behind. Method: streams are cancelled with
// requests in flight; a drain finds the gate idle long before its deadline; earlier calls succeed.
TEST_F(AttendStreamTest, ACallerThatLeavesLeavesNothingBehind) {
  const v1::AttendReply want = Unary(Named());
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    const auto stream = requester_stub_->AttendStream(&context);
    ASSERT_TRUE(stream->Write(Named()));
    for (uint64_t tag = 1; tag < 10; ++tag) ASSERT_TRUE(stream->Write(Unnamed(tag)));
    v1::AttendStreamReply reply;
    const bool waits = i % 2 == 0;
    EXPECT_TRUE(!waits || stream->Read(&reply));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ExpectSameBits(Unary(Named()), want);
  const Instant start = Clock::Real()->Now();
  requester_->Drain(start + std::chrono::seconds(60));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(20));
}

// Goal: a drain answers what it has read, and refuses the rest so that callers go elsewhere.
TEST_F(AttendStreamTest, ADrainAnswersWhatItHasRead) {
  const v1::AttendReply want = Unary(Named());
  Call call(std::chrono::seconds(60));
  const auto stream = requester_stub_->AttendStream(call.get());
  EXPECT_EQ(Ask(*stream, Named()).code(), 0u);
  std::thread drain;
  std::thread writer([&] {
    uint64_t tag = 1;
    while (stream->Write(Unnamed(tag++))) {
    }
  });
  v1::AttendStreamReply reply;
  uint64_t answered = 0;
  while (stream->Read(&reply)) {
    ASSERT_EQ(reply.code(), 0u) << reply.message();
    ExpectSameBits(reply.reply(), want);
    if (++answered == 20)
      drain = std::thread([&] { requester_->Drain(Soon(std::chrono::seconds(60))); });
  }
  writer.join();
  const grpc::Status ended = stream->Finish();
  drain.join();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE) << ended.error_message();
  EXPECT_THAT(ended.error_message(), HasSubstr("draining"));
}

TEST_F(AttendStreamTest, FetchSelectionReturnsTheRowsOfTheIndices) {
  v1::FetchSelectionRequest request;
  request.set_corpus("c");
  request.set_layer_begin(1);
  // The first layer's rows are of all chunks, unordered, one of them twice. The second has none.
  const std::vector<std::vector<int32_t>> lists = {{120, 3, 50, 113, 3}, {}};
  for (const auto& list : lists) request.add_layers()->set_indices(Int32sToBytes(list));
  const auto fetch = [&](std::map<uint32_t, std::map<uint32_t, std::string>>* rows) {
    Call call;
    const auto reader = requester_stub_->FetchSelection(call.get(), request);
    v1::FetchSelectionReply reply;
    const uint32_t row_bytes = corpus_.geometry.row_bytes();
    while (reader->Read(&reply)) {
      const auto ordinals = *Int32sFromBytes(reply.ordinals(), 1000);
      EXPECT_EQ(reply.rows().size(), ordinals.size() * row_bytes);
      for (size_t i = 0; i < ordinals.size(); ++i)
        (*rows)[reply.layer()][ordinals[i]] = reply.rows().substr(i * row_bytes, row_bytes);
    }
    return reader->Finish();
  };
  std::map<uint32_t, std::map<uint32_t, std::string>> rows;
  const grpc::Status status = fetch(&rows);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[1].size(), lists[0].size());
  const std::vector<uint16_t> all = corpus_.Rows(1);
  const size_t d_qk = corpus_.geometry.d_qk;
  for (uint32_t i = 0; i < lists[0].size(); ++i) {
    const char* row = reinterpret_cast<const char*>(all.data() + size_t(lists[0][i]) * d_qk);
    EXPECT_TRUE(rows[1][i] == std::string(row, d_qk * 2)) << i;
  }
  const auto code = [&] { return fetch(&rows).error_code(); };
  request.add_layers();
  request.add_layers();
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);  // more layers than there are
  request.clear_layers();
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.add_layers()->set_indices("123");
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_layers(0)->set_indices(Int32sToBytes(std::vector<int32_t>{121}));
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_corpus("nothing");
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace ckv
