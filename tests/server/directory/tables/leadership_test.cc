// Goal: a directory changes something only while it surely leads, and says who does otherwise.

#include "server/directory/tables/leadership.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(Leadership, OneThatIsAloneLeads) {
  const Leadership lead;
  EXPECT_TRUE(lead.Check().ok());
  EXPECT_FALSE(lead.is_shared());
  EXPECT_EQ(lead.term(), Leadership::kAloneTerm);
}

TEST(Leadership, LeadsOnlyWhileItIsSure) {
  Leadership lead;
  lead.Follow();
  EXPECT_TRUE(lead.is_shared());
  EXPECT_EQ(lead.term(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(lead.Check()));
  lead.SetLeader("10.0.0.1:7400");
  EXPECT_NE(lead.Check().message().find("10.0.0.1:7400"), absl::string_view::npos);
  bool is_sure = true;
  lead.Lead([&] { return is_sure; });
  EXPECT_TRUE(lead.Check().ok());
  const uint64_t term = lead.term();
  EXPECT_GT(term, Leadership::kAloneTerm);
  is_sure = false;
  EXPECT_TRUE(absl::IsUnavailable(lead.Check()));
  EXPECT_EQ(lead.term(), term) << "until it follows";
  lead.Follow();
  EXPECT_EQ(lead.leader(), "");
  is_sure = true;
  lead.Lead([&] { return is_sure; });
  EXPECT_GT(lead.term(), term);
}

}  // namespace
}  // namespace ckv
