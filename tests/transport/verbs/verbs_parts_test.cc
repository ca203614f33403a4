// Goal: what a peer sends in an offer, an answer and an immediate is checked before it is used; the
// limits of a device hold and are given back; a machine without a device reports what to do.
// Method: no device. Good notes with one field changed at a time; 10,000 damaged ones.

#include <sys/resource.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/verbs/verbs_budget.h"
#include "transport/verbs/verbs_check.h"
#include "transport/verbs/verbs_fabric.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {
namespace {

VerbsEndFrame GoodOffer() {
  VerbsEndFrame end;
  end.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1};
  end.qp_number = 17;
  end.packet_sequence = 0xabcdef;
  end.mtu = 3;
  end.ethernet = 1;
  end.generation = 99;
  end.slot_count = 4;
  end.request_bytes_max = 4096;
  end.reply_bytes_max = 8190;
  end.reply_stride = 8192;
  end.landing = 0x7f0000001000;
  end.landing_key = 0x1234;
  return end;
}

VerbsEndFrame GoodAnswer() {
  VerbsEndFrame end = GoodOffer();
  end.qp_number = 18;
  end.reply_stride = 0;
  end.landing = 0;
  end.landing_key = 0;
  end.segment_bytes = 8u << 20;
  return end;
}

struct Change {
  const char* what;
  std::function<void(VerbsEndFrame&)> apply;
};

// Bad in an offer and in an answer.
const std::vector<Change> kBadEnds = {
    {"queue pair 0", [](VerbsEndFrame& e) { e.qp_number = 0; }},
    {"queue pair 1", [](VerbsEndFrame& e) { e.qp_number = 1; }},
    {"queue pair of 25 bits", [](VerbsEndFrame& e) { e.qp_number = 1u << 24; }},
    {"sequence of 25 bits", [](VerbsEndFrame& e) { e.packet_sequence = 1u << 24; }},
    {"MTU 0", [](VerbsEndFrame& e) { e.mtu = 0; }},
    {"MTU 6", [](VerbsEndFrame& e) { e.mtu = 6; }},
    {"no link layer", [](VerbsEndFrame& e) { e.ethernet = 2; }},
    {"reserved", [](VerbsEndFrame& e) { e.reserved = 1; }},
    {"no GID", [](VerbsEndFrame& e) { e.gid = {}; }},
    {"multicast GID", [](VerbsEndFrame& e) { e.gid[0] = 0xff; }},
    {"no LID", [](VerbsEndFrame& e) { e.ethernet = 0; }},
    {"multicast LID",
     [](VerbsEndFrame& e) {
       e.ethernet = 0;
       e.lid = 0xc000;
     }},
    {"no slots", [](VerbsEndFrame& e) { e.slot_count = 0; }},
    {"257 slots", [](VerbsEndFrame& e) { e.slot_count = 257; }},
    {"requests of nothing", [](VerbsEndFrame& e) { e.request_bytes_max = 0; }},
    {"replies too long", [](VerbsEndFrame& e) { e.reply_bytes_max = kSlotBytesMax + 1; }},
};

TEST(VerbsWire, GoodMessagesArrive) {
  const auto offer = DecodeVerbsOffer(EncodeVerbsOffer(GoodOffer()));
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->landing_key, 0x1234u);
  EXPECT_EQ(offer->generation, 99u);
  const InvitationKey key = RandomInvitationKey();
  const auto answer = DecodeVerbsAnswer(EncodeVerbsAnswer({key, GoodAnswer()}), GoodOffer());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->key.id, key.id);
  EXPECT_EQ(answer->end.qp_number, 18u);
  EXPECT_LE(EncodeVerbsOffer(GoodOffer()).size(), kOfferBytesMax);
}

TEST(VerbsWire, FieldsOutOfRangeAreRefused) {
  for (const Change& change : kBadEnds) {
    SCOPED_TRACE(change.what);
    VerbsEndFrame offer = GoodOffer();
    change.apply(offer);
    EXPECT_EQ(DecodeVerbsOffer(EncodeVerbsOffer(offer)).status().code(),
              absl::StatusCode::kInvalidArgument);
    VerbsEndFrame answer = GoodAnswer();
    change.apply(answer);
    EXPECT_EQ(DecodeVerbsAnswer(EncodeVerbsAnswer({{}, answer}), GoodOffer()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(VerbsWire, LandingRegionsAreChecked) {
  const std::vector<Change> bad = {
      {"nowhere", [](VerbsEndFrame& e) { e.landing = 0; }},
      {"unaligned", [](VerbsEndFrame& e) { e.landing += 4; }},
      {"wraps", [](VerbsEndFrame& e) { e.landing = ~uint64_t{0} - 63; }},
      {"slots overlap", [](VerbsEndFrame& e) { e.reply_stride = 8128; }},
      {"unaligned stride", [](VerbsEndFrame& e) { e.reply_stride = 8200; }},
      {"segments", [](VerbsEndFrame& e) { e.segment_bytes = 1; }},
  };
  for (const Change& change : bad) {
    SCOPED_TRACE(change.what);
    VerbsEndFrame offer = GoodOffer();
    change.apply(offer);
    EXPECT_EQ(DecodeVerbsOffer(EncodeVerbsOffer(offer)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(VerbsWire, AnswersMustFitTheirOffer) {
  const auto decode = [](const std::function<void(VerbsEndFrame&)>& apply) {
    VerbsEndFrame answer = GoodAnswer();
    apply(answer);
    return DecodeVerbsAnswer(EncodeVerbsAnswer({{}, answer}), GoodOffer()).status().code();
  };
  EXPECT_EQ(decode([](VerbsEndFrame& e) { e.generation = 98; }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(decode([](VerbsEndFrame& e) { e.slot_count = 5; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode([](VerbsEndFrame& e) { e.segment_bytes = 0; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode([](VerbsEndFrame& e) { e.segment_bytes = (64u << 10) + 1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decode([](VerbsEndFrame& e) {
              e.ethernet = 0;
              e.lid = 3;
            }),
            absl::StatusCode::kInvalidArgument);
}

TEST(VerbsWire, DamagedMessagesDoNotCrash) {
  std::mt19937 rng(3);
  const std::string good = EncodeVerbsOffer(GoodOffer());
  const std::string answer = EncodeVerbsAnswer({RandomInvitationKey(), GoodAnswer()});
  for (int i = 0; i < 10'000; ++i) {
    for (std::string bytes : {good, answer}) {
      for (int flips = 1 + static_cast<int>(rng() % 4); flips > 0; --flips) {
        char& byte = bytes[rng() % bytes.size()];
        byte = static_cast<char>(byte ^ (1 << rng() % 8));
      }
      if (rng() % 4 == 0) bytes.resize(rng() % (bytes.size() + 1));
      const auto offer = DecodeVerbsOffer(bytes);
      if (offer.ok()) {
        ASSERT_LE(offer->slot_count, kSlotCountMax);
        ASSERT_GE(offer->reply_stride, offer->reply_bytes_max);
      }
      (void)DecodeVerbsAnswer(bytes, GoodOffer());
    }
  }
}

TEST(VerbsWire, Immediates) {
  for (uint32_t slot : {0u, 1u, 255u}) {
    for (uint32_t segments : {0u, 7u, 1023u}) {
      const VerbsImmediate decoded = DecodeImmediate(EncodeImmediate(slot, segments));
      EXPECT_FALSE(decoded.control.has_value());
      EXPECT_EQ(decoded.slot, slot);
      EXPECT_EQ(decoded.segment_count, segments);
    }
  }
  EXPECT_EQ(DecodeImmediate(EncodeImmediate(VerbsControl::kBye)).control, VerbsControl::kBye);
  EXPECT_TRUE(DecodeImmediate(0xffffffff).control.has_value());
}

TEST(VerbsBudget, LimitsHoldAndAreGivenBack) {
  VerbsOptions options;
  options.queue_pairs = {5, 2};
  options.receives = {100, 60};
  const auto budget = std::make_shared<VerbsBudget>(options);
  {
    auto a1 = budget->Take("a", {.queue_pairs = 1, .receives = 20});
    auto a2 = budget->Take("a", {.queue_pairs = 1, .receives = 20});
    ASSERT_TRUE(a1.ok() && a2.ok());
    EXPECT_EQ(budget->Take("a", {.queue_pairs = 1}).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(budget->Take("a", {.receives = 21}).status().code(),
              absl::StatusCode::kResourceExhausted);
    auto b = budget->Take("b", {.queue_pairs = 2, .receives = 60});
    ASSERT_TRUE(b.ok());
    // What this process dials is on no account: only the total limits it.
    EXPECT_EQ(budget->Take(std::nullopt, {.receives = 1}).status().code(),
              absl::StatusCode::kResourceExhausted);
    auto ours = budget->Take(std::nullopt, {.queue_pairs = 1});
    ASSERT_TRUE(ours.ok());
    EXPECT_EQ(budget->Take(std::nullopt, {.queue_pairs = 1}).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(budget->Take("c", {.queue_pairs = ~uint64_t{0}}).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(budget->use(), (VerbsUse{.queue_pairs = 5, .receives = 100}));
  }
  EXPECT_EQ(budget->use(), VerbsUse{});
  EXPECT_TRUE(budget->Take("a", {.queue_pairs = 2}).ok());
}

// A session that names no tenant is charged as any other, not as what this process dials.
TEST(VerbsBudget, TheNamelessAccountIsAnAccount) {
  VerbsOptions options;
  options.queue_pairs = {5, 2};
  const auto budget = std::make_shared<VerbsBudget>(options);
  auto nameless = budget->Take("", {.queue_pairs = 2});
  ASSERT_TRUE(nameless.ok());
  EXPECT_EQ(budget->Take("", {.queue_pairs = 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  // No other account is charged for it, and it can use again what it gives back.
  EXPECT_TRUE(budget->Take("a", {.queue_pairs = 2}).ok());
  EXPECT_TRUE(budget->Take(std::nullopt, {.queue_pairs = 3}).ok());
  { const VerbsBudget::Grant gone = *std::move(nameless); }
  EXPECT_TRUE(budget->Take("", {.queue_pairs = 2}).ok());
}

// What one account holds limits no other until the total is reached, limit by limit.
TEST(VerbsBudget, EveryLimitIsCountedForItsAccount) {
  VerbsOptions options;
  options.queue_pairs = options.receives = options.regions = options.region_bytes = {9, 3};
  const auto budget = std::make_shared<VerbsBudget>(options);
  for (uint64_t VerbsUse::*field :
       {&VerbsUse::queue_pairs, &VerbsUse::receives, &VerbsUse::regions, &VerbsUse::region_bytes}) {
    VerbsUse all, one;
    all.*field = 3;
    one.*field = 1;
    auto greedy = budget->Take("greedy", all);
    ASSERT_TRUE(greedy.ok());
    EXPECT_EQ(budget->Take("greedy", one).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(budget->Take("other", all).ok());
  }
  EXPECT_EQ(budget->use(), VerbsUse{});
}

TEST(VerbsCheck, OptionsThatNoDeviceHas) {
  const std::vector<std::function<void(VerbsOptions&)>> bad = {
      [](VerbsOptions& o) { o.port = 0; },
      [](VerbsOptions& o) { o.gid_index = -2; },
      [](VerbsOptions& o) { o.mtu_bytes = 1500; },
      [](VerbsOptions& o) { o.mtu_bytes = 8192; },
      [](VerbsOptions& o) { o.service_level = 16; },
      [](VerbsOptions& o) { o.timeout = 0; },
      [](VerbsOptions& o) { o.timeout = 32; },
      [](VerbsOptions& o) { o.retry_count = 7; },
      [](VerbsOptions& o) { o.rnr_retry_count = 7; },
      [](VerbsOptions& o) { o.min_rnr_timer = 32; },
      [](VerbsOptions& o) { o.segment_bytes = 63 << 10; },
      [](VerbsOptions& o) { o.segment_bytes += 1; },
      [](VerbsOptions& o) { o.gather_segment_bytes = 4096; },
      [](VerbsOptions& o) { o.probe_interval_ms = 0; },
      [](VerbsOptions& o) { o.silence_ms_max = 0; },
  };
  EXPECT_TRUE(CheckVerbsOptions({}).ok());
  for (size_t i = 0; i < bad.size(); ++i) {
    VerbsOptions options;
    bad[i](options);
    EXPECT_EQ(CheckVerbsOptions(options).code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_EQ(CheckVerbs(options).code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(VerbsCheck, LockedMemory) {
  VerbsOptions options;
  options.region_bytes = {1 << 20, 1 << 20};
  EXPECT_TRUE(CheckLockedMemory(options, RLIM_INFINITY).ok());
  EXPECT_TRUE(CheckLockedMemory(options, 1 << 20).ok());
  const absl::Status status = CheckLockedMemory(options, (1 << 20) - 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("LimitMEMLOCK=infinity"), absl::string_view::npos) << status;
}

// The error states how to get a device, or which devices there are.
TEST(VerbsCheck, DevicesThatAreNotThere) {
  VerbsOptions options;
  options.region_bytes = {1 << 16, 1 << 16};  // within any RLIMIT_MEMLOCK
  options.device = "none-such0";
  const absl::Status status = CheckVerbs(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  const bool reported = status.message().find("rdma link add") != absl::string_view::npos ||
                        status.message().find("modprobe") != absl::string_view::npos ||
                        status.message().find("there are") != absl::string_view::npos;
  EXPECT_TRUE(reported) << status;
  EXPECT_EQ(NewVerbsFabric(options, Clock::Real()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckv
