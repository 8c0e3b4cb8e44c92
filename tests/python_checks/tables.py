"""Reads the tables argv[2:] with the package argv[1] and prints each as {"columns": [...], "rows": [[...], ...]}."""

import json
import sys

package, paths = sys.argv[1], sys.argv[2:]


def read(path):
    if package == "pandas":
        import pandas

        table = pandas.read_parquet(path) if path.endswith(".parquet") else pandas.read_csv(path)
        return list(table.columns), table.astype(object).where(table.notnull(), None).values.tolist()
    if package == "polars":
        import polars

        table = polars.read_parquet(path) if path.endswith(".parquet") else polars.read_csv(path)
        return table.columns, [list(row) for row in table.rows()]
    import duckdb

    table = duckdb.sql(f"select * from '{path}'")
    return table.columns, [list(row) for row in table.fetchall()]


tables = []
for path in paths:
    columns, rows = read(path)
    tables.append({"columns": columns, "rows": rows})
print(json.dumps(tables))
