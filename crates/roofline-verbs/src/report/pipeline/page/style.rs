//! How the page looks, beside what every page has.

/// In light and in dark.
pub(super) const STYLE: &str = "\
:root{--after:#0072b2;--before:#8a96a3;--soft:#e8edf2}\
@media(prefers-color-scheme:dark){:root{--after:#56b4e9;--before:#77838f;--soft:#232b35}}\
body.pipeline{max-width:62rem;margin:2.5rem auto 4rem}\
header{margin-bottom:1.4rem}header h1{font-size:2rem;line-height:1.2;margin:.1rem 0 .3rem;overflow-wrap:anywhere}\
.arrow{color:var(--muted);font-weight:400}.brand{margin:0;color:var(--muted);font-size:.85rem;letter-spacing:.08em;text-transform:uppercase}\
.note{color:var(--muted);margin:.2rem 0 1rem}\
.pipeline .lead{padding:1.2rem 1.5rem;margin-bottom:1rem}.pipeline .lead .word{font-size:2.6rem}.pipeline .lead .first{font-size:1.25rem;font-weight:600}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;margin:0 0 2rem}\
.tile{background:var(--row);border-radius:.4rem;padding:.8rem 1rem}.tile b{display:block;font-size:1.7rem;line-height:1.25;font-variant-numeric:tabular-nums}\
.tile span{color:var(--muted);font-size:.9rem}.tile.bad b{color:var(--bad)}\
section{margin-top:2.6rem}section h2{margin:0 0 .2rem;font-size:1.3rem}section h3{margin:1.6rem 0 .3rem}h3 small{color:var(--muted);font-weight:400}\
.groups{display:grid;grid-template-columns:repeat(auto-fit,minmax(26rem,1fr));gap:1.1rem 2.2rem}\
.group h3{font-size:.98rem;margin:0 0 .1rem}.group h3 small{margin-left:.3rem}\
.group{display:grid;grid-template-columns:minmax(5.5rem,max-content) 1fr max-content;gap:.25rem .7rem;align-items:center;align-content:start;font-size:.9rem}\
.group h3{grid-column:1/-1}.row{display:contents}\
.row .name{color:var(--muted);overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.row .value{font-variant-numeric:tabular-nums;min-width:4.5rem;text-align:right}\
.track{background:var(--soft);border-radius:.2rem;height:1.05rem;display:block}.track i{display:block;height:100%;border-radius:.2rem;background:var(--after)}\
.track i.before{background:var(--before)}\
.track i.predicted{background:repeating-linear-gradient(45deg,var(--after) 0 4px,transparent 4px 8px);outline:1px solid var(--after);outline-offset:-1px}\
.heat td,.heat th{text-align:center;padding:.3rem .5rem;min-width:2.6rem}.heat th:first-child{text-align:left}.heat tbody tr:nth-child(odd){background:none}\
.heat td{background:color-mix(in srgb,var(--bad) var(--h),transparent);border:1px solid var(--back)}.heat td:first-child{min-width:0}\
.token{font-family:ui-monospace,monospace;font-size:.85rem}.token mark{background:color-mix(in srgb,var(--after) 30%,transparent);color:inherit;border-radius:.2rem;padding:0 .15rem}\
pre{background:var(--row);border-radius:.4rem;padding:.8rem 1rem;overflow-x:auto;font-size:.85rem}\
section td:last-child{white-space:normal}\
@media(max-width:34rem){.groups{grid-template-columns:1fr}}";
