// Goal: a requester keeps what its .proto comments promise.
// Method: whole daemons in this process, asked over gRPC as any client would; answers are held
// against an f64 reference.

#include <limits>
#include <map>
#include <set>

#include "attention/rope.h"
#include "proto/convert.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;

using RequesterServiceTest = test::ServicesTest;

TEST_F(RequesterServiceTest, ResolveByNameAndByTokens) {
  StartHolders(2);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 30}, /*seed=*/6);
  Load("c", corpus);
  v1::ResolveRequest request;
  v1::ResolveReply reply;
  request.set_corpus("c");
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), request, &reply).ok());
  EXPECT_EQ(reply.token_count(), 99u);
  EXPECT_EQ(reply.corpus().chunks_size(), 4);

  // A prompt that leaves the corpus inside its last chunk.
  std::vector<int32_t> tokens;
  for (const test::TestChunk& chunk : corpus.chunks) {
    tokens.insert(tokens.end(), chunk.info.token_ids.begin(), chunk.info.token_ids.end());
  }
  tokens[90] += 1;
  request.set_token_ids(Int32sToBytes(tokens));
  EXPECT_EQ(requester_stub_->Resolve(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);  // it was published without prints
  request.set_corpus_hint("c");
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), request, &reply).ok());
  EXPECT_EQ(reply.token_count(), 69u);
  EXPECT_EQ(reply.corpus().chunks_size(), 3);
  tokens[0] += 1;
  request.set_token_ids(Int32sToBytes(tokens));
  EXPECT_EQ(requester_stub_->Resolve(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request.set_token_ids("abc");
  EXPECT_EQ(requester_stub_->Resolve(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_corpus("nothing");
  EXPECT_EQ(requester_stub_->Resolve(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RequesterServiceTest, AttendEqualsTheReferenceHoweverTheChunksAreNamed) {
  StartHolders(2);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130, 1}, /*seed=*/7);
  Load("c", corpus);
  std::mt19937 rng(8);
  const std::vector<uint16_t> q = test::RandomBf16(16 * corpus.geometry.d_qk, rng);
  for (uint32_t layer = 0; layer < corpus.geometry.layers; ++layer) {
    SCOPED_TRACE(layer);
    v1::AttendRequest request = test::AttendOf("c", layer, q, corpus.geometry.d_qk);
    request.set_tag(77);
    v1::AttendReply whole;
    const grpc::Status status = Attend(request, &whole);
    ASSERT_TRUE(status.ok()) << status.error_message();
    test::ExpectNear(whole, test::Reference(corpus.geometry, q, corpus.Rows(layer)));
    EXPECT_EQ(whole.tag(), 77u);
    EXPECT_EQ(whole.row_count(), 16u);
    EXPECT_EQ(whole.holder_count(), 2u);
    EXPECT_GT(whole.bytes_sent(), 0u);
    EXPECT_GT(whole.elapsed_ns(), 0u);

    const auto part = test::Reference(corpus.geometry, q, corpus.Rows(layer, 1, 4));
    request.set_chunk_begin(1);
    request.set_chunk_end(4);
    v1::AttendReply range;
    ASSERT_TRUE(Attend(request, &range).ok());
    test::ExpectNear(range, part);

    v1::AttendRequest by_id = test::AttendOf("c", layer, q, corpus.geometry.d_qk);
    for (const size_t i : {1, 2, 3}) {
      by_id.add_chunks()->set_id(std::string(corpus.chunks[i].info.id.AsBytes()));
    }
    v1::AttendReply named;
    ASSERT_TRUE(Attend(by_id, &named).ok());
    test::ExpectNear(named, part);

    by_id.clear_corpus();
    *by_id.mutable_geometry() = ToProto(corpus.geometry);
    v1::AttendReply nameless;
    const grpc::Status by_geometry = Attend(by_id, &nameless);
    ASSERT_TRUE(by_geometry.ok()) << by_geometry.error_message();
    test::ExpectNear(nameless, part);
  }
}

TEST_F(RequesterServiceTest, AnOffsetTurnsTheQueriesBack) {
  StartHolders(1);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {64}, /*seed=*/9);
  const Geometry& geometry = corpus.geometry;
  Load("c", corpus);
  std::mt19937 rng(10);
  const std::vector<uint16_t> q = test::RandomBf16(4 * geometry.d_qk, rng);
  std::vector<uint16_t> turned(q.size());
  test::CopyRotatedBf16(RopeRotation(geometry.rope, geometry.d_rope, -1000), q.data(),
                        geometry.d_qk, turned.data(), 4, geometry.d_qk);

  v1::AttendRequest request = test::AttendOf("c", 1, q, geometry.d_qk);
  v1::ChunkRef* chunk = request.add_chunks();
  chunk->set_id(std::string(corpus.chunks[0].info.id.AsBytes()));
  chunk->set_offset(1000);
  v1::AttendReply reply;
  ASSERT_TRUE(Attend(request, &reply).ok());
  test::ExpectNear(reply, test::Reference(geometry, turned, corpus.Rows(1)));
}

TEST_F(RequesterServiceTest, ASelectionAttendsItsRowsOnly) {
  StartHolders(2);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {10, 20}, /*seed=*/11);
  const Geometry& geometry = corpus.geometry;
  Load("c", corpus);
  std::mt19937 rng(12);
  const std::vector<uint16_t> q = test::RandomBf16(2 * geometry.d_qk, rng);
  const std::vector<int32_t> chosen = {29, 3, -1, 11};
  const std::vector<uint16_t> rows = corpus.Rows(2);
  std::vector<uint16_t> chosen_rows;
  for (const int32_t i : chosen) {
    if (i < 0) continue;
    chosen_rows.insert(chosen_rows.end(), rows.begin() + i * geometry.d_qk,
                       rows.begin() + (i + 1) * geometry.d_qk);
  }
  v1::AttendRequest request = test::AttendOf("c", 2, q, geometry.d_qk);
  request.mutable_selection()->set_indices(Int32sToBytes(chosen));
  request.mutable_selection()->set_k(4);
  request.mutable_selection()->set_group_rows(2);
  v1::AttendReply reply;
  const grpc::Status status = Attend(request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  test::ExpectNear(reply, test::Reference(geometry, q, chosen_rows));
  request.mutable_selection()->set_group_rows(1);
  EXPECT_EQ(AttendCode(request), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RequesterServiceTest, AnInvalidRequestGetsATypedErrorAndChangesNothingElse) {
  StartHolders(1);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/13);
  const Geometry& geometry = corpus.geometry;
  Load("c", corpus);
  std::mt19937 rng(14);
  const std::vector<uint16_t> q = test::RandomBf16(2 * geometry.d_qk, rng);
  const v1::AttendRequest good = test::AttendOf("c", 0, q, geometry.d_qk);
  const auto code = [&](auto change) {
    v1::AttendRequest request = good;
    change(request);
    return AttendCode(request);
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  constexpr auto kNotFound = grpc::StatusCode::NOT_FOUND;
  constexpr auto kOther = grpc::StatusCode::FAILED_PRECONDITION;
  const std::string id(corpus.chunks[0].info.id.AsBytes());

  EXPECT_EQ(code([](auto& r) { r.set_corpus("nothing"); }), kNotFound);
  EXPECT_EQ(code([](auto& r) { r.clear_corpus(); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_layer(3); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_row_count(3); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_row_count(0xffffffff); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_chunk_begin(2); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_chunk_end(3); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_wire(static_cast<v1::PartialDtype>(9)); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.set_precision(static_cast<v1::Precision>(9)); }), kInvalid);
  EXPECT_EQ(code([](auto& r) { r.add_chunks()->set_id(std::string(32, 'x')); }), kNotFound);
  EXPECT_EQ(code([](auto& r) { r.add_chunks()->set_id("short"); }), kInvalid);
  EXPECT_EQ(code([&](auto& r) {
              r.add_chunks()->set_id(id);
              r.add_chunks()->set_id(id);
            }),
            kInvalid);
  Geometry other = geometry;
  other.revision = "r2";
  EXPECT_EQ(code([&](auto& r) { *r.mutable_geometry() = ToProto(other); }), kOther);
  EXPECT_EQ(code([&](auto& r) {
              r.clear_corpus();
              *r.mutable_geometry() = ToProto(other);
              r.add_chunks()->set_id(id);
            }),
            kOther);
  EXPECT_EQ(code([&](auto& r) {
              r.clear_corpus();
              *r.mutable_geometry() = ToProto(geometry);
              r.add_chunks()->set_id(std::string(32, 'x'));
            }),
            kNotFound);

  v1::AttendReply reply;
  ASSERT_TRUE(Attend(good, &reply).ok());
  test::ExpectNear(reply, test::Reference(geometry, q, corpus.Rows(0)));
}

TEST_F(RequesterServiceTest, AStreamOutlivesErrors) {
  StartHolders(2);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64}, /*seed=*/15);
  Load("c", corpus);
  std::mt19937 rng(16);
  const std::vector<uint16_t> q = test::RandomBf16(4 * corpus.geometry.d_qk, rng);
  Call call;
  const auto stream = requester_stub_->AttendStream(call.get());
  for (uint64_t tag = 0; tag < 9; ++tag) {
    v1::AttendRequest request = test::AttendOf("c", tag % 3, q, corpus.geometry.d_qk);
    request.set_tag(tag);
    if (tag % 4 == 1) request.set_layer(99);
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  std::set<uint64_t> tags;
  for (int i = 0; i < 9; ++i) {
    v1::AttendStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    const uint64_t tag = reply.tag();
    EXPECT_TRUE(tag < 9 && tags.insert(tag).second) << tag;
    if (tag % 4 == 1) {
      EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
      EXPECT_FALSE(reply.message().empty());
      EXPECT_FALSE(reply.has_reply());
    } else {
      EXPECT_EQ(reply.code(), 0u) << reply.message();
      EXPECT_EQ(reply.reply().tag(), tag);
      test::ExpectNear(reply.reply(), test::Reference(corpus.geometry, q, corpus.Rows(tag % 3)));
    }
  }
  v1::AttendStreamReply after;
  EXPECT_FALSE(stream->Read(&after));
  EXPECT_TRUE(stream->Finish().ok());

  v1::DescribeReply described;
  ASSERT_TRUE(requester_stub_->Describe(Call().get(), {}, &described).ok());
  EXPECT_EQ(described.id(), "r");
  EXPECT_EQ(described.directory_address(), directory_->address());
  EXPECT_EQ(described.attend_count(), 9u);
  EXPECT_EQ(described.error_count(), 2u);
  EXPECT_EQ(described.holders_size(), 2);
  // Calls may have used locally cached rows by now ("cached"). Neither primitive counts the trials
  // of the holders' kernels.
  uint64_t attended = 0;
  for (const v1::Latency& latency : described.latency()) {
    if (latency.of() == "route" || latency.of() == "cached") attended += FromProto(latency).total();
  }
  EXPECT_EQ(attended, 7u);
  ASSERT_EQ(described.hottest_size(), 1);
  EXPECT_EQ(described.hottest(0).name(), "c");
  EXPECT_EQ(described.hottest(0).call_count(), 7u);
}

TEST_F(RequesterServiceTest, ExplainNamesEveryTerm) {
  StartHolders(2);
  StartRequester();
  Load("c", test::MakeTestCorpus(test::TestGeometry(), {50, 64}, /*seed=*/17));
  v1::ExplainRequest request;
  request.set_corpus("c");
  request.set_query_rows(16);
  v1::ExplainReply reply;
  const grpc::Status status = requester_stub_->Explain(Call().get(), request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(reply.costs_size(), 3);
  // The winner depends on what is measured now. In any case it is the cheapest primitive offered.
  for (const v1::PrimitiveCost& chosen : reply.costs()) {
    if (chosen.primitive() != reply.choice()) continue;
    EXPECT_TRUE(chosen.offered());
    for (const v1::PrimitiveCost& other : reply.costs()) {
      EXPECT_TRUE(!other.offered() || other.total_us() >= chosen.total_us()) << other.primitive();
    }
  }
  EXPECT_THAT(reply.choice(), testing::AnyOf("route", "fetch"));
  EXPECT_EQ(reply.costs(0).primitive(), "route");
  EXPECT_TRUE(reply.costs(0).offered());
  EXPECT_EQ(reply.costs(0).terms_size(), 9);
  EXPECT_EQ(reply.inputs_size(), 8);
  EXPECT_EQ(reply.inputs(0).name(), "steps");
  EXPECT_EQ(reply.inputs(1).value(), 16);
  ASSERT_EQ(reply.holders_size(), 2);
  EXPECT_NEAR(reply.holders(0).token_share() + reply.holders(1).token_share(), 1, 1e-9);
  EXPECT_GT(reply.holders(0).route_us(), 0);
  EXPECT_FALSE(reply.holders(0).has_path());  // no oracle
  EXPECT_GT(reply.costs(0).total_us(), 0);
  EXPECT_FALSE(reply.flips().empty());
  EXPECT_GT(reply.route_bytes(), 0u);
  EXPECT_EQ(reply.route_holder_count(), 2u);
  EXPECT_EQ(reply.route_bytes(), 2 * reply.route_bytes_per_holder());
  // The engine's prefills offer `local`, and rows at other positions cost a splice.
  EXPECT_FALSE(reply.costs(2).offered());
  v1::ReportPrefillRequest prefill;
  v1::ReportPrefillReply taken;
  prefill.set_corpus("c");
  prefill.set_tokens(1000);
  prefill.set_microseconds(5e5);
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(requester_stub_->ReportPrefill(Call().get(), prefill, &taken).ok());
  *prefill.mutable_geometry() = ToProto(test::TestGeometry());
  prefill.clear_corpus();
  ASSERT_TRUE(requester_stub_->ReportPrefill(Call().get(), prefill, &taken).ok());
  request.set_spliced(true);
  ASSERT_TRUE(requester_stub_->Explain(Call().get(), request, &reply).ok());
  EXPECT_TRUE(reply.costs(2).offered()) << reply.costs(2).reason();
  double splice_us = 0;
  for (const v1::CostTerm& term : reply.costs(1).terms()) {
    if (term.name() == "splice") splice_us = term.microseconds();
  }
  EXPECT_GT(splice_us, 0);
  for (const double us : {0.0, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    prefill.set_microseconds(us);
    EXPECT_EQ(requester_stub_->ReportPrefill(Call().get(), prefill, &taken).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << us;
  }
  request.set_corpus("nothing");
  EXPECT_EQ(requester_stub_->Explain(Call().get(), request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RequesterServiceTest, FetchStreamsTheRowsThemselves) {
  StartHolders(2);
  StartRequester();
  // 7000 rows of 192 B: more than one message.
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(2), {9, 7000, 0}, /*seed=*/18);
  const Geometry& geometry = corpus.geometry;
  Load("c", corpus);
  v1::FetchRequest request;
  request.set_corpus("c");
  Call call;
  const auto reader = requester_stub_->Fetch(call.get(), request);
  std::map<std::pair<uint32_t, uint32_t>, std::string> rows;
  v1::FetchReply reply;
  while (reader->Read(&reply)) {
    std::string& so_far = rows[{reply.chunk(), reply.layer()}];
    EXPECT_EQ(so_far.size(), size_t{reply.token_begin()} * geometry.row_bytes());
    EXPECT_EQ(reply.rows().size(), size_t{reply.token_count()} * geometry.row_bytes());
    EXPECT_LE(reply.rows().size(), 1u << 20);
    so_far += reply.rows();
  }
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      const std::vector<uint16_t>& expected = corpus.chunks[chunk].layers[layer];
      const std::string bytes(reinterpret_cast<const char*>(expected.data()), expected.size() * 2);
      EXPECT_TRUE((rows[{chunk, layer}] == bytes)) << chunk << " " << layer;
    }
  }
  request.set_layer_end(3);
  Call bad;
  const auto refused = requester_stub_->Fetch(bad.get(), request);
  EXPECT_FALSE(refused->Read(&reply));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// Goal: a corpus that is replaced is seen without a restart. Method: publish, resolve, replace by a
// shorter one. The watch makes the requester invalidate the corpus, so that a later Resolve returns
// the new one.
TEST_F(RequesterServiceTest, NoticesAReplacedCorpus) {
  StartHolders(1);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/19);
  Load("c", corpus);
  v1::ResolveRequest resolve;
  resolve.set_corpus("c");
  v1::ResolveReply resolved;
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), resolve, &resolved).ok());
  EXPECT_EQ(resolved.token_count(), 11u);
  Corpus shorter = corpus.Publish("c", "", {{{"h0"}}});
  shorter.chunks.pop_back();
  v1::PublishCorpusRequest publish;
  *publish.mutable_corpus() = ToProto(shorter);
  publish.set_replace(true);
  v1::PublishCorpusReply published;
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &published).ok());
  const Instant deadline = Soon();
  while (resolved.token_count() != 5 && Clock::Real()->Now() < deadline) {
    ASSERT_TRUE(requester_stub_->Resolve(Call().get(), resolve, &resolved).ok());
  }
  EXPECT_EQ(resolved.token_count(), 5u);
}

// Goal: the same for a tenant's own corpus.
TEST_F(RequesterServiceTest, NoticesAReplacedCorpusOfATenant) {
  StartRequester();
  Corpus corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/20)
                      .Publish("c", "red", {{{"h"}}});
  ASSERT_TRUE(test::Publish(*directory_stub_, corpus).ok());
  v1::ResolveRequest resolve;
  resolve.set_corpus("c");
  resolve.set_tenant("red");
  v1::ResolveReply resolved;
  ASSERT_TRUE(requester_stub_->Resolve(Call().get(), resolve, &resolved).ok());
  EXPECT_EQ(resolved.token_count(), 11u);
  corpus.chunks.pop_back();
  v1::PublishCorpusRequest publish;
  *publish.mutable_corpus() = ToProto(corpus);
  publish.set_replace(true);
  v1::PublishCorpusReply published;
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &published).ok());
  const Instant deadline = Soon();
  while (resolved.token_count() != 5 && Clock::Real()->Now() < deadline) {
    ASSERT_TRUE(requester_stub_->Resolve(Call().get(), resolve, &resolved).ok());
  }
  EXPECT_EQ(resolved.token_count(), 5u);
}

// Goal: a call that names a version is served by that version or refused, and a chunk is not
// refused because of an old version. Method: a corpus is replaced by a longer one. Calls arrive
// before or after the watch's report, and the answers are the same.
TEST_F(RequesterServiceTest, ACallIsOfOneVersion) {
  StartHolders(1);
  StartRequester();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/21);
  const Geometry& geometry = corpus.geometry;
  for (const test::TestChunk& chunk : corpus.chunks) {
    ASSERT_TRUE(test::Put(*holder_stubs_[0], geometry, chunk).ok());
  }
  v1::PublishCorpusRequest publish;
  publish.set_replace(true);
  v1::PublishCorpusReply older, newer;
  Corpus published = corpus.Publish("c", "", {{{"h0"}}});
  const Corpus whole = published;
  published.chunks.pop_back();
  *publish.mutable_corpus() = ToProto(published);
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &older).ok());
  std::mt19937 rng(22);
  const std::vector<uint16_t> q = test::RandomBf16(2 * geometry.d_qk, rng);
  v1::AttendRequest request = test::AttendOf("c", 0, q, geometry.d_qk);
  v1::AttendReply reply;
  request.set_corpus_version(older.version());
  ASSERT_TRUE(Attend(request, &reply).ok());
  test::ExpectNear(reply, test::Reference(geometry, q, corpus.Rows(0, 0, 1)));

  *publish.mutable_corpus() = ToProto(whole);
  ASSERT_TRUE(directory_stub_->PublishCorpus(Call().get(), publish, &newer).ok());
  v1::AttendRequest by_id = test::AttendOf("c", 0, q, geometry.d_qk);
  by_id.add_chunks()->set_id(std::string(corpus.chunks[1].info.id.AsBytes()));
  ASSERT_TRUE(Attend(by_id, &reply).ok());
  test::ExpectNear(reply, test::Reference(geometry, q, corpus.Rows(0, 1, 2)));
  const grpc::Status refused = Attend(request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(),
              testing::AllOf(testing::HasSubstr(std::to_string(older.version())),
                             testing::HasSubstr(std::to_string(newer.version()))));
  request.set_corpus_version(newer.version());
  ASSERT_TRUE(Attend(request, &reply).ok());
  test::ExpectNear(reply, test::Reference(geometry, q, corpus.Rows(0)));

  v1::FetchRequest fetch;
  fetch.set_corpus("c");
  for (const auto& [version, code] : {std::pair(older.version(), refused.error_code()),
                                      std::pair(newer.version(), grpc::StatusCode::OK)}) {
    fetch.set_corpus_version(version);
    Call call;
    const auto reader = requester_stub_->Fetch(call.get(), fetch);
    v1::FetchReply rows;
    while (reader->Read(&rows)) continue;
    EXPECT_EQ(reader->Finish().error_code(), code);
  }
}

}  // namespace
}  // namespace ckv
