// Goal: holders and the directory keep what their .proto comments promise.
// Method: whole daemons in this process, asked over gRPC as any client would.

#include <set>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/grpc/watch_stub.h"
#include "server/services/holder_service.h"
#include "store/memory/chunk.h"
#include "tests/server/services/services_fixture.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;
using testing::HasSubstr;

using HolderServiceTest = test::ServicesTest;
using DirectoryServiceTest = test::ServicesTest;

TEST_F(HolderServiceTest, PutListPinDropStats) {
  StartHolders(1);
  v1::HolderService::Stub& holder = *holder_stubs_[0];
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130}, /*seed=*/1);
  for (const test::TestChunk& chunk : corpus.chunks) {
    const grpc::Status put = test::Put(holder, corpus.geometry, chunk);
    ASSERT_TRUE(put.ok()) << put.error_message();
  }
  EXPECT_EQ(test::Put(holder, corpus.geometry, corpus.chunks[1]).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);

  v1::ListChunksRequest list;
  list.set_count_max(3);
  v1::ListChunksReply page;
  std::set<std::string> ids;
  do {
    page.Clear();
    Call call;
    ASSERT_TRUE(holder.ListChunks(call.get(), list, &page).ok());
    ASSERT_GT(page.chunks_size(), 0);
    for (const auto& chunk : page.chunks()) EXPECT_TRUE(ids.insert(chunk.id()).second);
    list.set_after(page.chunks(page.chunks_size() - 1).id());
  } while (page.more());
  EXPECT_EQ(ids.size(), 4u);

  const std::string id(corpus.chunks[3].info.id.AsBytes());
  v1::PinChunkRequest pin;
  pin.set_id(id);
  v1::PinChunkReply pinned;
  EXPECT_TRUE(holder.PinChunk(Call().get(), pin, &pinned).ok());
  pin.set_id(std::string(32, 'x'));
  EXPECT_EQ(holder.PinChunk(Call().get(), pin, &pinned).error_code(), grpc::StatusCode::NOT_FOUND);
  pin.set_id("short");
  EXPECT_EQ(holder.PinChunk(Call().get(), pin, &pinned).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  v1::StatsReply stats = StatsOf(0);
  EXPECT_EQ(stats.id(), "h0");
  EXPECT_GT(stats.epoch(), 0u);
  EXPECT_EQ(stats.chunk_count(), 4u);
  EXPECT_EQ(stats.token_count(), 199u);
  EXPECT_EQ(stats.capacity_bytes(), 16u << 20);
  EXPECT_FALSE(stats.kernel_target().empty());
  EXPECT_EQ(stats.models_size(), 1);

  v1::DropChunkRequest drop;
  drop.set_id(id);
  v1::DropChunkReply dropped;
  EXPECT_TRUE(holder.DropChunk(Call().get(), drop, &dropped).ok());
  EXPECT_EQ(holder.DropChunk(Call().get(), drop, &dropped).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(StatsOf(0).chunk_count(), 3u);
}

// Goal: a chunk that GetChunkInfo reported is not collected for as long as the caller counts on it
// (idle_min_ms).
// Method: the service on the test's own clock.
TEST(HolderServiceIdle, KeepsRequestedChunksFromCollection) {
  ManualClock clock;
  const std::unique_ptr<Fabric> fabric = NewLoopbackFabric(&clock);
  HolderOptions options;
  options.id = {"h"};
  options.clock = &clock;
  options.fabrics = {fabric.get()};
  auto holder = Holder::Start(options);
  ASSERT_TRUE(holder.ok()) << holder.status();
  (*holder)->lease().Grant({1}, kInstantMax);
  ServiceGate gate(/*stream_count_max=*/1);
  HolderServiceImpl service(holder->get(), "h", &gate, &clock);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/1);
  ASSERT_TRUE(test::PutChunk((*holder)->store(), corpus.geometry, corpus.chunks[0]).ok());
  const std::string id(corpus.chunks[0].info.id.AsBytes());
  const auto idle_ms = [&] {
    v1::ListChunksReply page;
    EXPECT_TRUE(
        service.ListChunks(nullptr, &v1::ListChunksRequest::default_instance(), &page).ok());
    EXPECT_FALSE(page.chunks(0).durable());
    return page.chunks(0).idle_ms();
  };
  const auto ask = [&](const std::string& tenant) {
    v1::GetChunkInfoRequest request;
    request.set_id(id);
    *request.mutable_geometry() = ToProto(corpus.geometry);
    request.set_tenant(tenant);
    v1::GetChunkInfoReply reply;
    return service.GetChunkInfo(nullptr, &request, &reply).ok();
  };
  const auto drop = [&](uint64_t idle_min_ms) {
    v1::DropChunkRequest request;
    request.set_id(id);
    request.set_idle_min_ms(idle_min_ms);
    v1::DropChunkReply reply;
    return service.DropChunk(nullptr, &request, &reply).error_code();
  };
  clock.Advance(std::chrono::seconds(2));
  EXPECT_EQ(idle_ms(), 2000u);
  EXPECT_TRUE(ask(""));
  EXPECT_EQ(idle_ms(), 0u);
  clock.Advance(std::chrono::milliseconds(1999));
  EXPECT_EQ(drop(2000), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(drop(UINT64_MAX), grpc::StatusCode::FAILED_PRECONDITION);
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(drop(2000), grpc::StatusCode::OK);
  EXPECT_EQ(drop(2000), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(ask(""));
}

// Goal: what is not a whole, right chunk is refused by its code and leaves nothing behind (I3, I6).
TEST_F(HolderServiceTest, ABadPutLeavesNothing) {
  StartHolders(1);
  v1::HolderService::Stub& holder = *holder_stubs_[0];
  const Geometry geometry = test::TestGeometry();
  const auto corpus = test::MakeTestCorpus(geometry, {40}, /*seed=*/2);
  const test::TestChunk& chunk = corpus.chunks[0];
  const auto good = test::MessagesOf(geometry, chunk);
  using Messages = std::vector<v1::PutChunkRequest>;
  const auto code = [&](const Messages& messages) {
    return test::PutMessages(holder, messages).error_code();
  };
  const auto with_header = [&](auto change) {
    Messages messages = good;
    change(*messages[0].mutable_header());
    return code(messages);
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

  EXPECT_EQ(code({}), kInvalid);                                         // nothing
  EXPECT_EQ(code({good[1]}), kInvalid);                                  // rows first
  EXPECT_EQ(code({good[0], good[0]}), kInvalid);                         // a header twice
  EXPECT_EQ(code({good[0], good[1], v1::PutChunkRequest()}), kInvalid);  // neither
  EXPECT_EQ(code(Messages(good.begin(), good.end() - 1)), kInvalid);     // bytes missing
  EXPECT_EQ(code({good[0], good[2]}), kInvalid);                         // not in order
  EXPECT_EQ(with_header([](auto& h) { h.set_id(std::string(32, 'x')); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.set_position(1); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.set_token_ids("abc"); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.add_tensor_checksums(1); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.mutable_geometry()->set_layers(1u << 30); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.clear_geometry(); }), kInvalid);
  EXPECT_EQ(with_header([](auto& h) { h.set_tensor_checksums(1, 7); }),
            grpc::StatusCode::DATA_LOSS);

  Messages large = {good[0], good[1]};
  large[1].mutable_rows()->mutable_rows()->assign((1u << 20) + 1, 'x');
  EXPECT_EQ(code(large), kInvalid);
  Messages other_layer = {good[0], good[1]};
  other_layer[1].mutable_rows()->set_tensor(geometry.layers);
  EXPECT_EQ(code(other_layer), kInvalid);

  // 16 MiB of store: a chunk of more is refused before its rows are sent.
  const auto huge = test::MakeTestCorpus(test::TestGeometry(/*layers=*/1), {90'000}, /*seed=*/3);
  EXPECT_EQ(code({test::HeaderOf(huge.geometry, huge.chunks[0])}),
            grpc::StatusCode::RESOURCE_EXHAUSTED);

  const v1::StatsReply stats = StatsOf(0);
  EXPECT_EQ(stats.chunk_count(), 0u);
  EXPECT_EQ(stats.used_bytes(), 0u);
  EXPECT_TRUE(test::Put(holder, geometry, chunk).ok());
}

TEST_F(HolderServiceTest, APutThatIsInterruptedLeavesNothing) {
  StartHolders(1);
  const Geometry geometry = test::TestGeometry();
  const auto corpus = test::MakeTestCorpus(geometry, {40}, /*seed=*/2);
  const auto good = test::MessagesOf(geometry, corpus.chunks[0]);
  {
    Call call;
    v1::PutChunkReply reply;
    const auto writer = holder_stubs_[0]->PutChunk(call.get(), &reply);
    // Everything is sent except the end of the stream.
    for (const auto& message : good) ASSERT_TRUE(writer->Write(message));
    call.get()->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The holder notices a moment later.
  const Instant deadline = Soon();
  while (StatsOf(0).used_bytes() != 0 && Clock::Real()->Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(StatsOf(0).used_bytes(), 0u);
  EXPECT_EQ(StatsOf(0).chunk_count(), 0u);
}

// Goal: puts that hang are bounded in number and do not hold a drain up.
TEST_F(HolderServiceTest, PutsInProgressAreBoundedAndADrainEndsThem) {
  StartHolders(1);
  const Geometry geometry = test::TestGeometry();
  const auto corpus = test::MakeTestCorpus(geometry, {40}, /*seed=*/2);
  const auto good = test::MessagesOf(geometry, corpus.chunks[0]);
  Call calls[kPutCountMax];
  v1::PutChunkReply replies[kPutCountMax];
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::PutChunkRequest>>> writers;
  for (uint32_t i = 0; i < kPutCountMax; ++i) {
    writers.push_back(holder_stubs_[0]->PutChunk(calls[i].get(), &replies[i]));
    ASSERT_TRUE(writers[i]->Write(good[0]));
  }
  // The holder reserves room once a header has arrived. All puts are of the same chunk, which is
  // not resident.
  const uint64_t bytes = ChunkLayout(geometry, 40).total_bytes();
  const Instant deadline = Soon();
  while (StatsOf(0).used_bytes() < kPutCountMax * bytes && Clock::Real()->Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(test::PutMessages(*holder_stubs_[0], good).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const Instant start = Clock::Real()->Now();
  holders_[0]->Drain(start + std::chrono::seconds(60));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(30));
  for (const auto& writer : writers) EXPECT_FALSE(writer->Finish().ok());
}

TEST_F(HolderServiceTest, AnotherTenantReadsAChunkOnceItHasShownItsRows) {
  StartHolders(1);
  const Geometry geometry = test::TestGeometry();
  const auto corpus = test::MakeTestCorpus(geometry, {40}, /*seed=*/2);
  auto messages = test::MessagesOf(geometry, corpus.chunks[0]);
  const auto put = [&](const std::string& tenant) {
    messages[0].mutable_header()->set_tenant(tenant);
    return test::PutMessages(*holder_stubs_[0], messages).error_code();
  };
  EXPECT_EQ(put(std::string(1000, 'a')), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(put("a"), grpc::StatusCode::OK);
  EXPECT_EQ(put("b"), grpc::StatusCode::ALREADY_EXISTS);
  messages[0].mutable_header()->set_tensor_checksums(0, 7);
  EXPECT_EQ(put("c"), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(put("b"), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(HolderServiceTest, SessionsAreRefusedForTheirGeometryVersionAndShape) {
  StartHolders(1);
  HolderStub stub({{"h0"}, MemberRole::kHolder, holders_[0]->address(), {}}, Clock::Real());
  SessionOffer offer;
  offer.geometry = test::TestGeometry();
  for (const uint32_t version : {0, 2}) {
    offer.wire_version_min = offer.wire_version_max = version;
    const absl::Status refused = stub.OpenSession(offer, Soon()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(refused.message()),
        testing::HasSubstr(absl::StrFormat("wire version %d, the holder 1: upgrade", version)));
  }
  offer.wire_version_min = offer.wire_version_max = 1;
  offer.shape.slot_count = 0;
  EXPECT_EQ(stub.OpenSession(offer, Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  offer.shape = {};
  offer.geometry.d_qk = 0;
  EXPECT_EQ(stub.OpenSession(offer, Soon()).status().code(), absl::StatusCode::kInvalidArgument);

  const auto unknown = stub.ResolveChunks({42}, {}, Soon());
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.status().message()),
              HasSubstr("holder h0 at " + holders_[0]->address() + ": ResolveChunks: "));
}

TEST_F(DirectoryServiceTest, RegisterKeepAliveDeregister) {
  v1::RegisterRequest request;
  request.mutable_member()->set_id("m");
  request.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  v1::RegisterReply grant;
  EXPECT_EQ(directory_stub_->Register(Call().get(), request, &grant).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_member()->set_control_address("127.0.0.1:9");
  ASSERT_TRUE(directory_stub_->Register(Call().get(), request, &grant).ok());
  EXPECT_EQ(grant.lease_ttl_ms(), 3000u);
  EXPECT_GT(grant.epoch(), 0u);

  v1::KeepAliveRequest keep;
  keep.set_lease_id(grant.lease_id());
  v1::KeepAliveReply kept;
  EXPECT_TRUE(directory_stub_->KeepAlive(Call().get(), keep, &kept).ok());
  EXPECT_EQ(kept.lease_ttl_ms(), 3000u);
  v1::ListMembersReply members;
  ASSERT_TRUE(directory_stub_->ListMembers(Call().get(), {}, &members).ok());
  ASSERT_EQ(members.members_size(), 1);
  EXPECT_EQ(members.members(0).epoch(), grant.epoch());

  v1::DeregisterRequest end;
  end.set_lease_id(grant.lease_id());
  v1::DeregisterReply ended;
  EXPECT_TRUE(directory_stub_->Deregister(Call().get(), end, &ended).ok());
  EXPECT_EQ(directory_stub_->KeepAlive(Call().get(), keep, &kept).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// As callers of chunks get them.
std::vector<ChunkPlacement> WithoutLineage(std::vector<ChunkPlacement> chunks) {
  for (ChunkPlacement& chunk : chunks) chunk.ClearLineage();
  return chunks;
}

TEST_F(DirectoryServiceTest, CorporaAndWhereTheirChunksAre) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {2, 3}, /*seed=*/4);
  const Corpus published = corpus.Publish("c", "t", {{{"a"}, {"b"}}});
  ASSERT_TRUE(test::Publish(*directory_stub_, published).ok());
  EXPECT_EQ(test::Publish(*directory_stub_, published).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  Corpus broken = published;
  broken.chunks[1].set_holders({});
  EXPECT_EQ(test::Publish(*directory_stub_, broken).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);

  DirectoryStub stub(directory_->address(), Clock::Real());
  const auto got = stub.GetCorpus("c", "t", Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->chunks, WithoutLineage(published.chunks));
  EXPECT_EQ(got->geometry, published.geometry);
  DirectoryStub whole(directory_->address(), Clock::Real(), /*for_calls=*/false);
  EXPECT_EQ(whole.GetCorpus("c", "t", Soon())->chunks, published.chunks);
  const auto denied = stub.GetCorpus("c", "other", Soon());
  EXPECT_EQ(denied.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(denied.status().message()),
              HasSubstr("directory " + directory_->address() + ": GetCorpus: "));

  const auto located = stub.LocateChunk(published.chunks[1].id, "t", Soon());
  ASSERT_TRUE(located.ok()) << located.status();
  ASSERT_EQ(located->size(), 1u);
  EXPECT_EQ((*located)[0].chunks, std::vector<ChunkPlacement>{published.chunks[1]});
  EXPECT_EQ((*located)[0].geometry, published.geometry);
  EXPECT_EQ(stub.LocateChunk(published.chunks[1].id, "other", Soon()).status().code(),
            absl::StatusCode::kNotFound);

  std::vector<ChunkId> ids;
  for (const ChunkPlacement& chunk : published.chunks) ids.push_back(chunk.id);
  const auto many = stub.LocateChunks(ids, published.geometry, "t", Soon());
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(*many, WithoutLineage(published.chunks));
  EXPECT_EQ(stub.LocateChunks(ids, published.geometry, "other", Soon()).status().code(),
            absl::StatusCode::kNotFound);
  Geometry revised = published.geometry;
  revised.revision = "another";
  EXPECT_EQ(stub.LocateChunks(ids, revised, "t", Soon()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  // More than one call takes.
  ids.resize(kIdsPerCallMax + 2, ids[0]);
  EXPECT_EQ(stub.LocateChunks(ids, published.geometry, "t", Soon())->size(), ids.size());

  v1::ListCorporaRequest list;
  list.set_tenant("t");
  v1::ListCorporaReply listed;
  ASSERT_TRUE(directory_stub_->ListCorpora(Call().get(), list, &listed).ok());
  ASSERT_EQ(listed.corpora_size(), 1);
  EXPECT_EQ(listed.corpora(0).token_count(), 5u);
  v1::CountReferencesRequest count;
  count.add_ids(std::string(corpus.chunks[0].info.id.AsBytes()));
  count.add_ids(std::string(32, 'x'));
  v1::CountReferencesReply counts;
  ASSERT_TRUE(directory_stub_->CountReferences(Call().get(), count, &counts).ok());
  EXPECT_THAT(counts.counts(), testing::ElementsAre(1, 0));
  for (int i = count.ids_size(); i < 4097; ++i) count.add_ids(count.ids(0));
  EXPECT_EQ(directory_stub_->CountReferences(Call().get(), count, &counts).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::DropCorpusRequest drop;
  drop.set_name("c");
  drop.set_tenant("t");
  v1::DropCorpusReply dropped;
  ASSERT_TRUE(directory_stub_->DropCorpus(Call().get(), drop, &dropped).ok());
  EXPECT_EQ(dropped.corpus().chunks_size(), 2);
  EXPECT_EQ(directory_stub_->DropCorpus(Call().get(), drop, &dropped).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(DirectoryServiceTest, AWatchShowsTheStateAndThenEveryChange) {
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {2}, /*seed=*/5);
  ASSERT_TRUE(test::Publish(*directory_stub_, corpus.Publish("before", "", {{{"a"}}})).ok());
  Call call;
  const auto reader = directory_stub_->Watch(call.get(), {});
  v1::WatchEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.corpus_published().name(), "before");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.synced());
  ASSERT_TRUE(test::Publish(*directory_stub_, corpus.Publish("after", "", {{{"a"}}})).ok());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.corpus_published().name(), "after");
  EXPECT_EQ(event.corpus_published().token_count(), 2u);
  StartHolders(1);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.member_up().id(), "h0");
  holders_[0]->Drain(Soon());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.member_gone().id(), "h0");
  call.get()->TryCancel();
  EXPECT_FALSE(reader->Read(&event));
}

// Polls until the condition holds or the time limit passes.
template <typename Condition>
bool BecomesTrue(Condition&& condition) {
  const Instant give_up = Soon();
  while (!condition()) {
    if (Clock::Real()->Now() >= give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_F(DirectoryServiceTest, AnEngineIsListedWhileItWatches) {
  const auto listed = [&] {
    v1::ListMembersRequest request;
    v1::ListMembersReply reply;
    EXPECT_TRUE(directory_stub_->ListMembers(Call().get(), request, &reply).ok());
    EXPECT_EQ(reply.engines_size(), 0) << "requesters ask often, and need none";
    request.set_as_known(true);
    EXPECT_TRUE(directory_stub_->ListMembers(Call().get(), request, &reply).ok());
    EXPECT_EQ(reply.members_size(), 0) << "an engine holds nothing, and is no member";
    return reply;
  };
  const auto watch = [&](std::optional<EngineFacts> engine) {
    WatchOptions options;
    options.addresses = directory_->address();
    options.engine = std::move(engine);
    auto made = std::make_unique<WatchStub>(
        options, [](std::string_view) {}, [](const absl::Status&) {});
    EXPECT_TRUE(BecomesTrue([&] { return made->connected(); }));
    return made;
  };
  const auto quiet = watch(std::nullopt);
  EngineFacts facts = {.name = "vllm",
                       .host = "node7",
                       .pid = 8,
                       .model = "m1",
                       .rank = 1,
                       .rank_count = 2,
                       .version = "0.1.0"};
  auto second = watch(facts);
  facts.pid = 9;
  facts.rank = 0;
  const auto first = watch(facts);
  const v1::ListMembersReply both = listed();
  ASSERT_EQ(both.engines_size(), 2);
  EXPECT_EQ(both.engines(0).pid(), 9u);
  EXPECT_EQ(both.engines(1).pid(), 8u);
  EXPECT_EQ(both.engines(1).rank(), 1u);
  EXPECT_EQ(both.engines(1).model(), "m1");
  second.reset();
  EXPECT_TRUE(BecomesTrue([&] { return listed().engines_size() == 1; }));
  EXPECT_EQ(listed().ended_size(), 0) << "nothing is told of an engine that ended";
}

TEST_F(DirectoryServiceTest, AWatchReportsEachIncarnationOfAMember) {
  StartHolders(1);
  absl::Mutex mu;
  std::vector<Member> seen;
  WatchOptions options;
  options.addresses = directory_->address();
  WatchStub watch(
      options, [](std::string_view) {}, [](const absl::Status&) {},
      [&](const Member& member) {
        absl::MutexLock lock(&mu);
        seen.push_back(member);
      });
  const auto await = [&](size_t count) {
    absl::MutexLock lock(&mu);
    const auto reported = [&] { return seen.size() >= count; };
    return Clock::Real()->Await(mu, absl::Condition(&reported), Soon());
  };
  ASSERT_TRUE(await(1));
  holders_[0]->Drain(Soon());
  holders_.clear();
  holder_stubs_.clear();
  StartHolders(1);
  ASSERT_TRUE(await(2));
  absl::MutexLock lock(&mu);
  EXPECT_EQ(seen[0].id.name, "h0");
  EXPECT_EQ(seen[1].id.name, "h0");
  EXPECT_EQ(seen[1].control_address, holders_[0]->address());
  EXPECT_LT(seen[0].epoch.value, seen[1].epoch.value);
}

}  // namespace
}  // namespace ckv
