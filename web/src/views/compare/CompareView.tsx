export default function CompareView() { return <div className="empty">…</div>; }
