// Goal: sessions begin and end as server/holder/holder.h specifies, and none harms another.
// Method: as holder_test.cc; the holder's own counters show when an expected event has happened.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/holder/holder.h"
#include "tests/server/holder/holder_fixture.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using test::HolderTest;
using test::kEpoch;
using test::RawAttend;
using test::RawClient;
using test::RawReply;

// Goal: a session speaks the newest version that both peers do (I7), and no other.
TEST_P(HolderTest, UsesTheNewestCommonVersion) {
  Put();
  const auto open = [&](uint32_t oldest, uint32_t newest) {
    SessionOffer offer;
    offer.wire_version_min = oldest;
    offer.wire_version_max = newest;
    offer.geometry = corpus_.geometry;
    offer.host_identity = HostIdentity();
    const auto dialer = fabric_->Dial(offer.shape);
    offer.fabrics = {{fabric_->kind(), {(*dialer)->offer()}}};
    return holder_->OpenSession(offer, kInstantMax);
  };
  const auto agreed = [&](uint32_t oldest, uint32_t newest) {
    const auto answer = open(oldest, newest);
    return answer.ok() ? answer->wire_version : 0;
  };
  EXPECT_EQ(agreed(kWireVersionMin, kWireVersion), kWireVersion);
  EXPECT_EQ(agreed(kWireVersionMin, kWireVersionMin), kWireVersionMin);
  EXPECT_EQ(agreed(kWireVersionMin - 1, kWireVersionMin), kWireVersionMin);
  EXPECT_EQ(agreed(kWireVersion, kWireVersion + 1), kWireVersion);
  EXPECT_EQ(agreed(kWireVersion + 1, kWireVersion + 2), 0);

  // The refusal of a peer without a common version names the versions of both.
  for (const uint32_t version : {0, 2}) {
    const absl::Status refused = open(version, version).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused));
    EXPECT_EQ(refused.message(), absl::StrFormat("the requester supports wire version %d, the "
                                                 "holder 1: upgrade the older one",
                                                 version));
  }

  // A frame of another version ends the lane.
  for (const uint16_t version : {0, 2}) {
    const auto client = Open();
    const uint32_t handle = client->Resolve(corpus_)[0];
    ExpectRight(*client, Dense({handle}, 4));
    if (HasFatalFailure()) return;
    RequestHeader header = client->Header();
    EXPECT_EQ(header.version, kWireVersion);
    header.version = version;
    client->Post(Dense({handle}, 4), header);
    EXPECT_FALSE(client->Await().ok());
  }
}

TEST_P(HolderTest, SessionsAreRefusedWithAReason) {
  SessionOffer offer;
  offer.geometry = corpus_.geometry;
  offer.host_identity = HostIdentity();
  const auto dialer = fabric_->Dial(offer.shape);
  offer.fabrics = {{fabric_->kind(), {(*dialer)->offer()}}};
  const auto refusal = [&](const SessionOffer& o) {
    return holder_->OpenSession(o, kInstantMax).status();
  };

  SessionOffer other = offer;
  other.geometry.d_v = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(refusal(other)));
  other = offer;
  other.shape.reply_bytes_max = 64;
  EXPECT_TRUE(absl::IsInvalidArgument(refusal(other))) << "could not carry an error";
  other = offer;
  other.fabrics[0].offers.assign(kLaneCountMax + 1, (*dialer)->offer());
  EXPECT_TRUE(absl::IsInvalidArgument(refusal(other)));
  other = offer;
  other.fabrics[0].offers[0].resize(kOfferBytesMax + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(refusal(other)));
  other = offer;
  other.fabrics = {};
  EXPECT_TRUE(absl::IsUnavailable(refusal(other)));
  other.fabrics = {{FabricKind::kVerbs, {"x"}}};
  EXPECT_TRUE(absl::IsUnavailable(refusal(other)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(holder_->OpenSession(offer, Instant{0}).status()));

  // An empty store takes any geometry; from its first chunk on there is one (I7).
  other = offer;
  other.geometry.revision = "r2";
  EXPECT_TRUE(holder_->OpenSession(other, kInstantMax).ok());
  Put();
  const absl::Status status = refusal(other);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("revision"));

  holder_->lease().Revoke();
  EXPECT_EQ(refusal(offer), absl::UnavailableError("no live lease"));
}

TEST_P(HolderTest, SessionsEndAndTheirPlaceIsFree) {
  options_.session_count_max = 2;
  StartHolder();
  Put();
  auto a = Open();
  auto b = Open({.lane_count = 3});
  const auto refused = RawClient::Open(*holder_, *fabric_, corpus_.geometry, {});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  // Closed by its peer.
  const SessionId closed = a->session();
  ASSERT_TRUE(holder_->CloseSession(closed, kInstantMax).ok());
  EXPECT_TRUE(absl::IsNotFound(holder_->CloseSession(closed, kInstantMax)));
  EXPECT_TRUE(absl::IsNotFound(holder_->ResolveChunks(closed, {}, kInstantMax).status()));
  EXPECT_TRUE(absl::IsUnavailable(a->Await().status())) << "its lane goes";
  // Its peer disconnected.
  b->DropLanes();
  EXPECT_TRUE(Eventually([](const HolderStats& stats) { return stats.session_count == 0; }));
  EXPECT_EQ(holder_->stats().lane_count, 0u);
  EXPECT_NE(Open(), nullptr);
}

// Goal: a tenant's session gets no handle of another's chunk, and cannot see that it exists.
TEST_P(HolderTest, ASessionResolvesItsTenantsChunks) {
  for (size_t i = 0; i < corpus_.chunks.size(); ++i) {
    const std::string tenant = i % 2 == 0 ? "a" : "";
    ASSERT_TRUE(test::PutCopy(holder_->store(), corpus_.geometry, corpus_.chunks[i], tenant).ok());
  }
  const auto a = Open({.tenant = "a"});
  const auto b = Open({.tenant = "b"});
  const auto everyone = Open();
  for (size_t i = 0; i < corpus_.chunks.size(); ++i) {
    EXPECT_NE(a->Resolve(corpus_)[i], 0u) << i;
    EXPECT_EQ(b->Resolve(corpus_)[i] != 0, i % 2 == 1) << i;
    EXPECT_EQ(everyone->Resolve(corpus_)[i] != 0, i % 2 == 1) << i;
  }
}

// Goal: a peer that dies with requests in flight costs no other peer an answer.
TEST_P(HolderTest, APeerMayLeaveWithWorkInFlight) {
  Put();
  const auto stays = Open();
  const std::vector<uint32_t> handles = stays->Resolve(corpus_);
  for (int round = 0; round < 20; ++round) {
    const auto goes = Open({.lane_count = 2});
    (void)goes->Resolve(corpus_);
    const RawAttend attend = Dense(handles, 16);
    for (int i = 0; i < 4; ++i) {
      goes->Post(attend, goes->Header(), 0);
      goes->Post(attend, goes->Header(), 1);
    }
    goes->DropLanes();
    ExpectRight(*stays, attend);
  }
  EXPECT_TRUE(Eventually([](const HolderStats& stats) { return stats.lane_count == 1; }));
  EXPECT_TRUE(NothingPinned());
}

// Goal: sessions of several threads at once, with full rings, get their own answers in order.
TEST_P(HolderTest, TwoSessionsAtOnce) {
  options_.compute_threads = 2;
  options_.batch_request_count_max = 5;
  StartHolder();
  Put();
  const auto serve = [&](uint32_t seed) {
    std::mt19937 rng(seed);
    const auto client = Open({.lane_count = 2});
    const std::vector<uint32_t> handles = client->Resolve(corpus_);
    std::vector<RawAttend> requests;
    std::vector<std::vector<reference::Partial>> expected;
    for (int i = 0; i < 8; ++i) {
      RawAttend attend = {.layer = static_cast<uint32_t>(i) % 3,
                          .row_count = 1 + static_cast<uint32_t>(rng() % 9),
                          .flags = kFlagPartialF32};
      attend.rows = test::RandomBf16(size_t{attend.row_count} * corpus_.geometry.d_qk, rng);
      const size_t chunk = rng() % handles.size();
      attend.pieces = {{.handle = handles[chunk]}};
      expected.push_back(test::ReferencePiece(corpus_.geometry, attend, attend.pieces[0],
                                              corpus_.chunks[chunk].layers[attend.layer]));
      requests.push_back(std::move(attend));
    }
    for (int round = 0; round < 10; ++round) {
      std::vector<uint64_t> ids;
      for (size_t i = 0; i < requests.size(); ++i) {
        ids.push_back(client->Post(requests[i], client->Header(), i % 2));
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto reply = client->Await(i % 2);
        ASSERT_TRUE(reply.ok() && reply->status().ok());
        ASSERT_EQ(reply->header.request_id, ids[i]);
        ExpectPartial(reply->Partials(corpus_.geometry.d_v).at(0), expected[i], true);
      }
    }
  };
  std::thread other(serve, 2);
  serve(3);
  other.join();
  EXPECT_EQ(holder_->stats().request_count, 160u);
  EXPECT_EQ(holder_->stats().error_count, 0u);
}

TEST_P(HolderTest, DrainAnswersReceivedRequestsAndRefusesTheRest) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const RawAttend attend = Dense(handles, 16);
  for (int i = 0; i < 8; ++i) client->Post(attend, client->Header());
  // The first answer shows that the requests, one write each and in order, have arrived.
  for (int i = 0; i < 8; ++i) {
    const auto reply = client->Await();
    ASSERT_TRUE(reply.ok() && reply->status().ok());
    if (i == 0) holder_->Drain(test::Soon());
  }
  const absl::Status late = ErrorOf(*client, attend, client->Header());
  EXPECT_EQ(late, absl::UnavailableError("the holder is draining"));
  const auto refused = RawClient::Open(*holder_, *fabric_, corpus_.geometry, {});
  EXPECT_TRUE(absl::IsUnavailable(refused.status()));
}

// Goal: no lane, however idle, is left asleep, neither without spinning nor while the clock does
// not advance.
TEST_P(HolderTest, AnIdleHolderWakes) {
  ManualClock clock;
  const auto fabric = test::MakeFabric(GetParam(), &clock);
  options_.spin_max = Duration(0);
  options_.clock = &clock;
  options_.fabrics = {fabric.get()};
  StartHolder();
  Put();
  const auto client = Open({}, fabric.get());
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  for (int i = 0; i < 200; ++i) ExpectRight(*client, Dense({handles[0]}, 1));
  // The lease is the clock's, not the system's.
  holder_->lease().Grant(kEpoch, clock.Now() + seconds(1));
  const RawAttend attend = Dense({handles[0]}, 1);
  EXPECT_TRUE(ErrorOf(*client, attend, client->Header()).ok());
  clock.Advance(seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(ErrorOf(*client, attend, client->Header())));
  holder_.reset();  // before its clock
}

TEST(Holder, OptionsHaveLimits) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  HolderOptions good;
  good.fabrics = {fabric.get()};
  good.capacity_bytes = 1u << 20;
  EXPECT_TRUE(Holder::Start(good).ok());
  HolderOptions options = good;
  options.fabrics = {};
  EXPECT_TRUE(absl::IsInvalidArgument(Holder::Start(options).status()));
  options = good;
  options.compute_threads = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Holder::Start(options).status()));
  options = good;
  options.batch_request_count_max = kBatchRequestCountMax + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Holder::Start(options).status()));
  options = good;
  options.session_count_max = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Holder::Start(options).status()));
}

// Records whom lanes were charged to.
class ChargingFabric final : public Fabric {
 public:
  explicit ChargingFabric(FabricKind kind) : inner_(test::MakeFabric(kind)) {}

  FabricKind kind() const noexcept override { return inner_->kind(); }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    return inner_->Dial(shape);
  }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    auto inner = inner_->Listen(options);
    if (!inner.ok()) return inner.status();
    return std::make_unique<Charging>(*std::move(inner), &accounts_);
  }
  const std::vector<std::string>& accounts() const { return accounts_; }

 private:
  class Charging final : public Listener {
   public:
    Charging(std::unique_ptr<Listener> inner, std::vector<std::string>* accounts)
        : inner_(std::move(inner)), accounts_(accounts) {}
    FabricKind kind() const noexcept override { return inner_->kind(); }
    int event_fd() const noexcept override { return inner_->event_fd(); }
    std::optional<AcceptedLane> Accept() override { return inner_->Accept(); }
    absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                       std::string_view account, uint64_t tag,
                                       Instant deadline) override {
      accounts_->emplace_back(account);
      return inner_->Invite(offer, shape, account, tag, deadline);
    }

   private:
    const std::unique_ptr<Listener> inner_;
    std::vector<std::string>* const accounts_;
  };

  const std::unique_ptr<Fabric> inner_;
  std::vector<std::string> accounts_;  // of each invitation; the test's thread invites
};

TEST_P(HolderTest, LanesAreChargedToTheSessionsTenant) {
  ChargingFabric fabric(GetParam());
  HolderOptions options = options_;
  options.fabrics = {&fabric};
  const auto holder = Holder::Start(options);
  ASSERT_TRUE(holder.ok()) << holder.status();
  (*holder)->lease().Grant(kEpoch, kInstantMax);
  SessionOffer offer;
  offer.geometry = corpus_.geometry;
  offer.host_identity = HostIdentity();
  const auto dialer = fabric.Dial(offer.shape);
  ASSERT_TRUE(dialer.ok());
  for (const char* tenant : {"a", "", "b"}) {
    offer.tenant = tenant;
    offer.requester = "the same";  // does not determine who pays
    offer.fabrics = {{fabric.kind(), {(*dialer)->offer(), (*dialer)->offer()}}};
    const auto answer = (*holder)->OpenSession(offer, kInstantMax);
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
  EXPECT_THAT(fabric.accounts(), testing::ElementsAre("a", "a", "", "", "b", "b"));
}

// Goal: shm is chosen by identity alone, and the first offer that reaches the peer wins.
TEST(Holder, TheFirstOfferThatReachesThePeerWins) {
  const auto shm = NewShmFabric(Clock::Real());
  const auto tcp = NewTcpFabric(Clock::Real());
  HolderOptions options;
  options.fabrics = {tcp.get(), shm.get()};
  options.capacity_bytes = 1u << 20;
  const auto holder = Holder::Start(options);
  ASSERT_TRUE(holder.ok()) << holder.status();
  (*holder)->lease().Grant(kEpoch, kInstantMax);
  SessionOffer offer;
  offer.geometry = test::TestGeometry();
  const auto shm_dialer = shm->Dial(offer.shape);
  const auto tcp_dialer = tcp->Dial(offer.shape);
  offer.fabrics = {{FabricKind::kShm, {(*shm_dialer)->offer()}},
                   {FabricKind::kTcp, {(*tcp_dialer)->offer()}}};
  offer.host_identity = HostIdentity();
  auto answer = (*holder)->OpenSession(offer, kInstantMax);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->fabric, FabricKind::kShm);
  offer.host_identity = "elsewhere";
  answer = (*holder)->OpenSession(offer, kInstantMax);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->fabric, FabricKind::kTcp);
  offer.fabrics.pop_back();
  EXPECT_TRUE(absl::IsUnavailable((*holder)->OpenSession(offer, kInstantMax).status()));
}

}  // namespace
}  // namespace ckv
