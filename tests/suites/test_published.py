"""Values of other groups agree with theory within their tolerance, or a remark says why they do not."""

import smimbench


def test_quadratic_networks():
    rows = [
        row
        for document in smimbench.theory("published", thresholds=False).documents
        for row in document["published"]
    ]
    assert len(rows) > 60
    for row in rows:
        if row["remark"]:
            assert not row["within"], (
                f"{row['label']} at {row['alpha']} agrees: the remark is out of date"
            )
            assert abs(row["theory"] - row["value"]) < 3e-3
        else:
            assert row["within"], (
                f"{row['label']} at {row['alpha']}: {row['value']}, theory {row['theory']}"
            )


def test_one_token_at_a_third_of_the_samples_is_two_tokens():
    """All sites look alike, so that only their number counts: three of two tokens, one of one."""
    from smimbench.theory.predictions import solve
    from tests.helpers import attention

    one = solve(attention("linear", tokens=1, noise=0.3), [0.3])[0].mse
    assert (
        abs(one - solve(attention("linear", tokens=2, noise=0.3), [0.1])[0].mse) < 1e-9
    )
